"""A step's rollouts in two waves of generation: made and rewarded apart, then handed on as one batch.

Axes: `_R` rollouts of all processes, `_F` reward functions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from coba_rl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Wave:
    """Rollouts of all processes, the same in each."""

    completion_ids: list[list[int]]
    """(R,) tokens of each."""
    logprobs: list[list[float]] | None
    """(R,) of their tokens, where the engine says."""
    rewards_RF: torch.Tensor
    """Of each reward function; NaN where it did not judge."""
    columns: dict[str, list[Any]]
    """(R,) values that reward functions log."""

    def then(self, other: Wave, order_R: np.ndarray) -> Wave:
        """Both waves as one, the rollouts of the second after those of the first, in the given order."""
        first, second = len(self.completion_ids), len(other.completion_ids)

        def joined(mine: list[Any] | None, others: list[Any] | None) -> list[Any]:
            rows = [*(mine or [None] * first), *(others or [None] * second)]
            return [rows[i] for i in order_R]

        rewards_RF = torch.cat([self.rewards_RF, other.rewards_RF])[torch.from_numpy(order_R)]
        names = sorted({*self.columns, *other.columns})
        return Wave(
            joined(self.completion_ids, other.completion_ids),
            None if self.logprobs is None else joined(self.logprobs, other.logprobs),
            rewards_RF,
            {name: joined(self.columns.get(name), other.columns.get(name)) for name in names},
        )


def check_two_waves(trainer: Any) -> None:
    """Refuse what takes more than a prompt and a turn.

    Raises:
        ConfigError: Tools, environments or a rollout function.
    """
    given = {
        "tools": trainer.tools,
        "rollout_func": trainer.rollout_func,
        "environment_factory": trainer.environment_factories,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"pilot={trainer.args.pilot} with {name}: expected one of them, because two waves can be made only of "
                "completions of one turn. Set pilot=0."
            )


def generate_wave(trainer: Any, rows: Sequence[dict[str, Any]]) -> Wave:
    """Generate and reward a rollout for each row, in equal shares over the processes.

    Args:
        trainer: A `GRPOTrainer` in training mode.
        rows: (R,) the prompt's row of the data for each rollout, the same in every process; at least one.

    Raises:
        ConfigError: Rows with images.
    """
    if {"image", "images"} & {*rows[0]}:
        raise ConfigError(
            f"pilot={trainer.args.pilot} with images in the data: expected text alone. Set pilot=0."
        )
    accelerator = trainer.accelerator
    share = math.ceil(len(rows) / accelerator.num_processes)
    first = accelerator.process_index * share
    # The last processes repeat the last row where there are too few: what they make of it is left out again.
    own = [copy.deepcopy(rows[min(i, len(rows) - 1)]) for i in range(first, first + share)]
    prompts = [row["prompt"] for row in own]
    with _unlogged(trainer):
        _, completion_ids, _, completions, logprobs, *_ = trainer._generate(prompts)
    rewards_RF = trainer._calculate_rewards(own, prompts, completions, completion_ids)
    names = sorted({*gather_object(list(trainer._pending_extra_logs))})
    columns = {name: gather_object(trainer._pending_extra_logs.get(name, [None] * share)) for name in names}
    trainer._pending_extra_logs.clear()
    size = len(rows)
    return Wave(
        gather_object(completion_ids)[:size],
        None if logprobs is None else gather_object(logprobs)[:size],
        rewards_RF[:size],
        {name: values[:size] for name, values in columns.items()},
    )


@contextmanager
def _unlogged(trainer: Any) -> Generator[None]:
    """Take back what a generation adds to the metrics: both waves are logged as one batch later."""
    metrics, num_tokens = trainer._metrics["train"], trainer.state.num_input_tokens_seen
    before = {name: list(values) for name, values in metrics.items()}
    try:
        yield
    finally:
        metrics.clear()
        metrics.update(before)
        trainer.state.num_input_tokens_seen = num_tokens
