"""The allocator over a training run: what it is told of the run, and how its memory outlives it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.errors import StateError
from coba_rl.hosts.data_order import order_of, other_order
from coba_rl.hosts.state import STATE_FILE, read_state, write_state


class AllocatorMemory:
    """An allocator whose state goes into checkpoints.

    Args:
        allocator: The allocator.

    Example:
        >>> import tempfile
        >>> memory = AllocatorMemory(BudgetAllocator("uniform"))
        >>> memory.observe(memory.allocator.allocate(["a", "b"], 4), np.array([1.0, 0.0, 1.0, 1.0]))
        >>> resumed = AllocatorMemory(BudgetAllocator("uniform"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     memory.save(folder, {"num_generations": 2})
        ...     resumed.load(folder, {"num_generations": 2}, ["b", "c"])
        ['1 of 2 prompts with a history are not in the training data any more (other data, or other prompt ids): \
their pass rates are kept but not used.']
        >>> resumed.allocator.state_dict() == memory.allocator.state_dict()
        True
    """

    def __init__(self, allocator: BudgetAllocator) -> None:
        self.allocator = allocator
        self._num_prompts_seen = 0

    def fill_in_num_steps(self, forward_passes: int, window: int) -> None:
        """Tell a strategy that follows the calendar how many allocations the training has, unless it knows.

        Args:
            forward_passes: Of the whole training.
            window: Forward passes that use one generation.
        """
        strategy = self.allocator.strategy
        if getattr(strategy, "num_steps", 0) is None:
            strategy.num_steps = max(1, math.ceil(forward_passes / window))  # ty: ignore[missing-attribute]

    def observe(self, allocation: Allocation, success_R: np.ndarray) -> None:
        """Take in what the rollouts of an allocation scored.

        Args:
            allocation: The budgets.
            success_R: (R,) success of each rollout, group after group; NaN is no attempt.
        """
        distinct = list(dict.fromkeys(allocation.prompt_ids))
        seen_before = self._count_seen(distinct)
        self.allocator.observe([allocation.prompt_ids[i] for i in allocation.repeat_index], success_R)
        self._num_prompts_seen += self._count_seen(distinct) - seen_before

    def _count_seen(self, prompt_ids: Sequence[str | int]) -> int:
        return int(np.sum(self.allocator.strategy.seen(prompt_ids)))

    def save(
        self, folder: str | os.PathLike[str], sizes: dict[str, Any], data_order: str | None = None
    ) -> None:
        """Write `coba_state.json` and the binary file beside it.

        Args:
            folder: The checkpoint folder.
            sizes: Settings to compare at `load`.
            data_order: `order_of` the training data, if known.
        """
        state = {
            "allocator": self.allocator.state_dict(arrays=True),
            "num_prompts_seen": self._num_prompts_seen,
            "sizes": sizes,
            "data_order": data_order,
        }
        write_state(folder, state)

    def load(
        self,
        folder: str | os.PathLike[str],
        sizes: dict[str, Any],
        prompt_ids: Sequence[str | int] | None = None,
        *,
        amid_epoch: bool = False,
    ) -> list[str]:
        """Restore what `save` wrote.

        Args:
            folder: The checkpoint folder. Without a state file the memory stays as it is.
            sizes: Settings of this run.
            prompt_ids: The prompt of every row of the training data, if known.
            amid_epoch: Whether the checkpoint was saved before the end of an epoch.

        Returns:
            Warnings, empty if this run simply goes on.

        Raises:
            StateError: The file is damaged, of another version or of another strategy; the message names it.
        """
        state = read_state(folder)
        if state is None:
            return [f"{folder} has no {STATE_FILE}: training goes on, but pass rates start anew."]
        try:
            num_prompts_seen, saved_sizes = int(state["num_prompts_seen"]), dict(state["sizes"])
            saved_order = state["data_order"]
            self.allocator.load_state_dict(state["allocator"])
        except (StateError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{os.path.join(folder, STATE_FILE)}: {error}") from error
        self._num_prompts_seen = num_prompts_seen
        changes = _changes(saved_sizes, sizes)
        if prompt_ids is None:
            return changes
        reordered = other_order(saved_order, order_of(prompt_ids), amid_epoch=amid_epoch)
        return [*changes, *self._lost(prompt_ids), *reordered]

    def _lost(self, prompt_ids: Sequence[str | int]) -> list[str]:
        lost = self._num_prompts_seen - self._count_seen(list(dict.fromkeys(prompt_ids)))
        if lost <= 0:
            return []
        return [
            f"{lost} of {self._num_prompts_seen} prompts with a history are not in the training data any more "
            "(other data, or other prompt ids): their pass rates are kept but not used."
        ]


def _changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {saved[name]!r} when the checkpoint was saved and is {value!r} now."
        for name, value in now.items()
        if saved.get(name, value) != value
    ]


def inside_generation_window(step: int, gradient_accumulation_steps: int, window: int) -> list[str]:
    """A warning if a checkpoint was saved while its rollouts were only partly used.

    Args:
        step: Optimizer step of the checkpoint.
        gradient_accumulation_steps: Forward passes of an optimizer step.
        window: Forward passes that use one generation.

    Example:
        >>> inside_generation_window(4, 1, 2)
        []
    """
    if step * gradient_accumulation_steps % window == 0:
        return []
    return [
        f"The checkpoint of step {step} lies inside a generation window of {window} forward passes: its unused "
        "rollouts are lost, and training differs from an uninterrupted run. Set save_steps to a multiple of "
        f"{window // math.gcd(window, gradient_accumulation_steps)}."
    ]
