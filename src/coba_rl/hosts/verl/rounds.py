"""A step's rollouts in two submissions: the batch that follows a pilot, and both as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from coba_rl.errors import ConfigError
from coba_rl.hosts.verl.keys import parse_key, rest_uid

ROLLOUT_FIELD = "__rollout_n__"
"""The field of a prompt from which verl's agent loop takes its number of rollouts."""

_REPLACING = ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")


def check_two_rounds(config: DictConfig, pilot: int) -> None:
    """Refuse settings under which a pilot cannot be looked at before the rest.

    Raises:
        ConfigError: Groups that are replaced, or rewards that a model gives only after all rollouts.
    """
    given = {name: OmegaConf.select(config, name) for name in _REPLACING}
    if OmegaConf.select(config, "reward.reward_model.enable"):
        name = "reward.reward_model.enable_resource_pool"
        given[name] = None if OmegaConf.select(config, name) else "False"
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"algorithm.coba.pilot={pilot} with {name}={value}: expected groups that stay and rewards that come with "
                "their rollouts. Set algorithm.coba.pilot=0, or the other way round."
            )


def rest_of(batch: TensorDict, pilot: int, budgets: np.ndarray) -> TensorDict | None:
    """What is submitted after the pilot; None if that was all.

    Args:
        batch: As submitted for the pilot.
        pilot: Rollouts of each prompt in it.
        budgets: (P,) whole budgets.
    """
    more = np.flatnonzero(budgets > pilot)
    if not len(more):
        return None
    rest = tu.index_select_tensor_dict(batch, more.tolist())
    rest[ROLLOUT_FIELD] = torch.from_numpy(budgets[more] - pilot)
    tu.assign_non_tensor_stack(rest, "uid", [rest_uid(uid, pilot) for uid in rest["uid"]])
    return rest


def as_one(first: KVBatchMeta, rest: KVBatchMeta) -> KVBatchMeta:
    """Rows of both submissions; verl compares the rollouts of one uid, so the rest gets that of its group."""
    uids: Any = np.array([parse_key(key).group for key in rest.keys], dtype=object)
    tq.kv_batch_put(keys=rest.keys, partition_id=rest.partition_id, fields=tu.get_tensordict({"uid": uids}))
    return replace(first, keys=[*first.keys, *rest.keys], tags=[*first.tags, *rest.tags])
