"""Noisy teachers of the embedded tasks: whom a policy is warm-started on.

Array names end in their axes: `_N` sequences, `_L` token positions, `_V` vocabulary, `_M` problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coba_rl.tasks.base import Problem


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts, each followed by an answer of the teacher, padded on the right."""

    ids_NL: np.ndarray
    """int64: token ids."""
    target_NLV: np.ndarray
    """float32: teacher's distribution of the next token; all zero where there is nothing to learn.

    Training on distributions instead of the drawn tokens removes most of the gradient's noise."""


class Teacher(ABC):
    """Right on some prompts, wrong on others, in a stable way: the same errors again and again."""

    @classmethod
    @abstractmethod
    def of_regime(cls, regime: str, seed: int) -> Teacher:
        """The teacher of a regime of its task, drawn from a seed.

        Raises:
            ConfigError: Unknown regime.
        """

    @abstractmethod
    def draw_batch(self, rng: np.random.Generator, num_sequences: int) -> Batch:
        """Draw random prompts and answers of the teacher; `rng` is advanced in place.

        Args:
            rng: Source of randomness.
            num_sequences: N.
        """

    @abstractmethod
    def pass_rates(self, problems: Sequence[Problem]) -> np.ndarray:
        """Chance that each problem is answered right, float64 (M,)."""


def shift_to_meet(mean: float, mean_at: Callable[[float], float]) -> float:
    """The shift, from -10 to 10, at which a function that rises with it has the value `mean`, by bisection.

    Example:
        >>> round(shift_to_meet(0.5, lambda shift: shift / 4), 6)
        2.0
    """
    low, high, shift = -10.0, 10.0, 0.0
    for _ in range(50):
        shift = (low + high) / 2
        if mean_at(shift) < mean:
            low = shift
        else:
            high = shift
    return shift
