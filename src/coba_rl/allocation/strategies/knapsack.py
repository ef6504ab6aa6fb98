"""Knapsack-RL (arXiv 2509.25849)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies.base import GainStrategy
from coba_rl.allocation.value import Gains, KnapsackGains


@dataclass(eq=False, kw_only=True)
class Knapsack(GainStrategy):
    """V = (1 − p^N − (1−p)^N) · p(1−p)²: the chance of a gradient times what the prompt has left to learn.

    Fall-back: prompts with p = 1 get the minimum; when every other prompt has the maximum or p = 0, what is
    left over goes evenly to the prompts with p = 0, and to those with p = 1 only when these are full.
    Prompts never seen (the first epoch) get the even share.
    """

    name: ClassVar[str] = "knapsack"

    def gains(self, p_P: np.ndarray, mean_budget: float) -> Gains:
        return KnapsackGains(p_P)

    def value(self, p_P: np.ndarray, mean_budget: float, batch_P: np.ndarray | None = None) -> np.ndarray:
        rare_P = np.minimum(p_P, 1.0 - p_P)
        chance_P = -np.expm1(mean_budget * np.log1p(-rare_P)) - rare_P**mean_budget
        return np.maximum(chance_P, 0.0) * p_P * (1.0 - p_P) ** 2

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        live, failed, solved = (p_P > 0.0) & (p_P < 1.0), p_P == 0.0, p_P == 1.0
        budgets = np.full(len(p_P), low, dtype=np.int64)
        remaining = total - len(p_P) * low
        for group in (live, failed, solved):
            size = int(group.sum())
            spent = min(remaining, size * (high - low))
            if size:
                share = size * low + spent
                budgets[group] = (
                    super().plan(p_P[group], share, low, high) if group is live else even_split(share, size)
                )
            remaining -= spent
        return budgets
