"""Weights of prompts, multiplied into the advantages that verl keeps in its TransferQueue."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from coba_rl.hosts.groups import GroupId
from coba_rl.hosts.verl.keys import parse_key


def weigh_advantages(batch: KVBatchMeta, weights: Mapping[GroupId, float]) -> None:
    """Multiply the advantages of each row by the weight of its prompt; padding rows stay as they are.

    Args:
        batch: Rows that have advantages; keys are `{uid}_{session}_{row}`.
        weights: By group.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])
    rows = [
        row * weights[parse_key(key).group]
        for key, row in zip(keys, data["advantages"].unbind(), strict=True)
    ]
    weighed = {"advantages": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
    tq.kv_batch_put(
        keys=keys, partition_id=batch.partition_id, fields=TensorDict(weighed, batch_size=len(keys))
    )
