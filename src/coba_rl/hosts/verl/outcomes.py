"""What came back from the rollouts, read from verl's TransferQueue."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import transfer_queue as tq

from coba_rl.errors import ConfigError, suggestion
from coba_rl.hosts.session import Outcome
from coba_rl.hosts.verl.keys import parse_key

DEFAULT_KEYS = ("acc", "score")
"""Where a verifier's own verdict stands, by verl's convention; penalties are added to the reward, not to these."""


def read_outcomes(
    keys: Sequence[str],
    tags: Sequence[Mapping[str, Any]],
    *,
    success_key: str | None,
    partition: str = "train",
) -> list[Outcome]:
    """Read the rollouts behind some rows; a group is named by verl's uid.

    Padding rows are left out, and of a rollout that became several rows only the last is judged: verl gives all of
    them its score. Its length is the sum over all of them of what the policy generated; tools wrote none of it.

    Args:
        keys: `{uid}_{session}_{row}`.
        tags: One a key.
        success_key: See `success_of`.
        partition: Of the TransferQueue.

    Raises:
        ConfigError: A rollout has no `success_key`, or no number there.
    """
    last: dict[tuple[str, int], tuple[int, str]] = {}
    keys = [key for key, tag in zip(keys, tags, strict=True) if not tag.get("is_padding", False)]
    for key in keys:
        group, index, row = parse_key(key)
        last[group, index] = max(last.get((group, index), (-1, "")), (row, key))
    if not last:
        return []
    fields = ["rm_scores", "extra_fields", *([success_key] if success_key else [])]
    data = tq.kv_batch_get(
        keys=[key for _, key in last.values()], partition_id=partition, select_fields=fields
    )
    extra_R = _column(data, "extra_fields", len(last))
    reward_R = [
        math.nan if scores is None else float(scores.sum())
        for scores in _column(data, "rm_scores", len(last))
    ]
    named_R = _column(data, success_key, len(last)) if success_key else [None] * len(last)
    length_of = _lengths(keys, partition)
    outcomes = []
    for (uid, session), extra, reward, named in zip(last, extra_R, reward_R, named_R, strict=True):
        info = dict((extra or {}).get("reward_extra_info") or {})
        if named is not None:  # A reward model in the trainer's own processes writes its results as columns.
            info[str(success_key)] = named
        success = success_of(info, reward, success_key)
        outcomes.append(Outcome(uid, session, success, reward, length_of[uid, session]))
    return outcomes


def _lengths(keys: Sequence[str], partition: str) -> Counter[tuple[str, int]]:
    """Generated tokens by group and index."""
    data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=["response_mask"])
    lengths = Counter[tuple[str, int]]()
    for key, mask in zip(keys, data["response_mask"].unbind(), strict=True):
        lengths[parse_key(key)[:2]] += int(mask.sum())
    return lengths


def success_of(info: Mapping[str, Any], reward: float, success_key: str | None) -> float:
    """Success of one rollout; NaN is no attempt.

    Args:
        info: What the reward function returned (`reward_extra_info`).
        reward: Sum of the rollout's `rm_scores`, penalties included.
        success_key: The key that says so; None: `acc`, else `score`, else the reward.

    Raises:
        ConfigError: The key is missing, or holds no number.

    Example:
        >>> success_of({"score": -1.0, "acc": True}, -0.4, None)
        1.0
        >>> success_of({"score": -1.0, "acc": True}, -0.4, "score")
        -1.0
        >>> success_of({"acc": None}, 0.0, None)
        nan
    """
    if success_key is None:
        value = next((info[key] for key in DEFAULT_KEYS if key in info), reward)
    elif success_key in info:
        value = info[success_key]
    else:
        raise ConfigError(
            f"algorithm.coba.success_key={success_key!r}: the reward function's result has no such key. "
            f"{suggestion(success_key, map(str, info))}"
        )
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"algorithm.coba.success_key={success_key!r}: the reward function returned {value!r} there: expected a "
            "number, true or false, or None for a rollout that cannot be judged."
        ) from None


def _column(data: Any, name: str, size: int) -> list[Any]:
    """A field of a TransferQueue batch, row by row; None in each row where the field does not exist."""
    from tensordict import NonTensorData

    if name not in data.keys():  # noqa: SIM118  `in` of a TensorDict itself means something else
        return [None] * size
    return [value.data if isinstance(value, NonTensorData) else value for value in data[name]]
