"""The same number of rollouts for every prompt: GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies.base import Strategy


@dataclass(eq=False, kw_only=True)
class Uniform(Strategy):
    """B = total/P for every prompt; the first prompts get the remainder. Pass rates are kept for the log."""

    name: ClassVar[str] = "uniform"

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return even_split(total, len(p_P))

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return self.plan(p_P, total, low, high)
