"""What a resumed run says of itself: settings that changed, histories without a prompt, data in another order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coba_rl.allocation.prompt_table import PromptId
from coba_rl.allocation.strategies import Strategy


def order_of(prompts: Iterable[str | int]) -> str:
    """Digest of prompts in their order.

    Args:
        prompts: An id, or any text that tells prompts apart, for each row of the data.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> order_of(["a", "b"]) == order_of(["b", "a"])
        False
    """
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(f"{prompt!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def other_order(saved: str | None, now: str | None, *, amid_epoch: bool) -> list[str]:
    """A warning where a run goes on amid an epoch with data in another order.

    Args:
        saved: Digest in the checkpoint; None where the data have no order that can be read, as streams.
        now: Digest of this run's data.
        amid_epoch: Whether the checkpoint was saved before the end of an epoch.

    Example:
        >>> other_order("07", "07", amid_epoch=True), other_order("07", "3f", amid_epoch=False)
        ([], [])
    """
    if saved is None or now is None or saved == now or not amid_epoch:
        return []
    return [
        "The training data are other rows, or the same in another order, than when the checkpoint was saved amid an "
        "epoch: until that epoch ends, some prompts are visited twice and some not at all. Resume with the data as "
        "they were, or from a checkpoint at the end of an epoch, to visit each prompt once."
    ]


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A warning for each setting that both name and that is another now.

    Example:
        >>> changed_settings({"G": 8, "P": 4}, {"G": 16, "P": 4})
        ['G was 8 when the checkpoint was saved and is 16 now.']
    """
    return [
        f"{name} was {saved[name]!r} when the checkpoint was saved and is {value!r} now."
        for name, value in now.items()
        if saved.get(name, value) != value
    ]


def lost_histories(strategy: Strategy, prompt_ids: Sequence[PromptId]) -> list[str]:
    """A warning where prompts that the strategy knows are not in the data.

    Args:
        strategy: As restored.
        prompt_ids: The prompt of every row of the training data.
    """
    known = len(strategy.prompts)
    lost = known - int(np.sum(strategy.seen(list(dict.fromkeys(prompt_ids)))))
    if lost <= 0:
        return []
    return [
        f"{lost} of {known} prompts with a history are not in the training data any more (other data, or other prompt "
        "ids): their pass rates are kept but not used."
    ]
