"""verl's replay buffer, asked more often whether the rollouts are done."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_INTERVAL = 0.05
"""Seconds; verl waits 2.0, longer than a small model takes to generate."""


class PromptReplayBuffer(ReplayBuffer):
    """The synchronous replay buffer with a short poll interval.

    Chosen by `trainer.v1.sampler.custom_sampler`. verl leaves group filtering to a custom sampler's own
    configuration, so `trainer.v1.sampler.sampler_kwargs` repeats the settings of the built-in one:
    `filter_groups`, `train_batch_size`, `sync_refill_failed_groups`, and optionally `poll_interval`.
    """

    def __init__(self, *, sampler_kwargs: Any, **kwargs: Any) -> None:
        groups = sampler_kwargs["filter_groups"]
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            poll_interval=sampler_kwargs.get("poll_interval", POLL_INTERVAL),
            filter_groups_metric=groups["metric"] if groups["enable"] else None,
            train_batch_size=sampler_kwargs["train_batch_size"],
            gen_batch_size=1,
            max_inflight_gen_batches=groups["max_inflight_gen_batches"],
            sync_refill_failed_groups=sampler_kwargs["sync_refill_failed_groups"],
            **kwargs,
        )
