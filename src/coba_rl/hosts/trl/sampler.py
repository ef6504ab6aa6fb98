"""TRL's prompt order, made resumable past the first epoch, and where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from trl.trainer.utils import RepeatSampler


class EpochRepeatSampler(RepeatSampler):
    """A `RepeatSampler` that can start at any epoch.

    `RepeatSampler` shuffles with a generator that moves on by one permutation an epoch. A resumed run builds a
    fresh sampler and would replay the first epoch's order. Here epoch e always has the e-th permutation; read
    from the start, the order is that of `RepeatSampler`.

    Example:
        >>> sampler = EpochRepeatSampler(range(4), mini_repeat_count=1, seed=0)
        >>> epochs = [list(sampler) for _ in range(3)]
        >>> resumed = EpochRepeatSampler(range(4), mini_repeat_count=1, seed=0)
        >>> resumed.set_epoch(2)
        >>> list(resumed) == epochs[2]
        True
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.epoch = 0
        if self.shuffle:
            self._start_state = self.generator.get_state()

    @classmethod
    def like(cls, sampler: RepeatSampler) -> EpochRepeatSampler:
        """The same order as `sampler`, which must not have been iterated."""
        return cls(
            data_source=sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
        )

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`, counted from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.set_state(self._start_state)
            for _ in range(self.epoch):
                torch.randperm(self.num_samples, generator=self.generator)
        self.epoch += 1  # a second pass without set_epoch is the next epoch, as in RepeatSampler
        yield from super().__iter__()


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
