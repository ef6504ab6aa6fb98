"""What a lab run measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coba_rl.lab.config import LabConfig


@dataclass(frozen=True, eq=False)
class LabResult:
    """A finished run, as `LabRun.run` returns it and a study's store holds it."""

    config: LabConfig
    curve: list[tuple[int, float]]
    """(step, exact held-out accuracy), from step 0 on."""
    before: list[int]
    """(N,) successes of 16 rollouts of each training prompt before training."""
    after: list[int]
    """(N,) the same after training."""
    steps: list[dict[str, float]]
    """Per step: the allocator's metrics, the error of its pass rates, the gradient norm, the generated `tokens` and
    `rollouts`."""
    seconds: float
    """Processor time of the run."""

    @property
    def final(self) -> float:
        """Held-out accuracy at the end."""
        return self.curve[-1][1]

    @property
    def rollouts(self) -> int:
        """Generated rollouts of the whole run."""
        return int(self.rollouts_by_step[-1])

    @property
    def tokens(self) -> int:
        """Generated tokens of the whole run."""
        return int(self.tokens_by_step[-1])

    @cached_property
    def rollouts_by_step(self) -> np.ndarray:
        """(steps + 1,) rollouts generated up to and including each step, from step 0 on."""
        return np.cumsum([0, *(int(step["rollouts"]) for step in self.steps)])

    @cached_property
    def tokens_by_step(self) -> np.ndarray:
        """(steps + 1,) tokens generated up to and including each step, from step 0 on."""
        return np.cumsum([0, *(int(step["tokens"]) for step in self.steps)])
