"""The CPU rollout as verl sees it: a replica that launches the server, an adapter that sends it weights."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cached_property
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from coba_rl.hosts.verl.cpu import ROLLOUT_NAME
from coba_rl.hosts.verl.cpu.server import GenerationServer


def server_name(replica_rank: int, suffix: str = "") -> str:
    """Name of a replica's Ray actor, by which the trainer's workers find it.

    Example:
        >>> server_name(1)
        'coba_cpu_server_1'
    """
    return f"{ROLLOUT_NAME}_server_{replica_rank}{suffix}"


class CPUReplica(RolloutReplica):
    """One `GenerationServer` a trainer's worker."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"a rollout replica spans {self.world_size} workers; the CPU rollout is not parallel inside a replica: "
                "set tensor_model_parallel_size, data_parallel_size and pipeline_model_parallel_size of "
                "actor_rollout_ref.rollout to 1"
            )
        role = "_reward" if self.is_reward_model else "_teacher" if self.is_teacher_model else ""
        name = server_name(self.replica_rank, role + self.name_suffix)
        node_id = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        server: Any = ray.remote(GenerationServer).options(
            name=name,
            num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        server = server.remote(self.config, self.model_config, self.replica_rank)
        await server.stats.remote()  # Fails here, with its own message, when the model cannot be built.
        self.servers = [server]
        self._server_handle, self._server_address = server, name


class ServerAdapter(BaseRollout):
    """Lives in a trainer's worker and sends its weights to the server of the same rank."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    @cached_property
    def server(self) -> Any:
        # Looked up on first use: the server is launched after this worker.
        return ray.get_actor(server_name(self.replica_rank))

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Send full tensors to the server.

        Args:
            weights: Pairs of name and full tensor; a collective, so every rank must walk it to its end.
            wire_format: Only `named_tensors`.
            global_steps: The version of the weights.

        Raises:
            ValueError: If another wire format is asked for.
        """
        if wire_format != "named_tensors":
            raise ValueError(f"wire_format is {wire_format!r}; the CPU rollout takes only 'named_tensors'")
        # Gathered before anything is sent: a rank that fails half-way would leave the others waiting.
        tensors = {name: tensor.detach() async for name, tensor in ensure_async_iterator(weights)}
        await self.server.update_weights.remote(tensors, global_steps)

    async def resume(self, tags: list[str]) -> None:
        """Weights and cache are never released: the server's memory is its own."""

    async def release(self) -> None:
        """Weights and cache are never released: the server's memory is its own."""
