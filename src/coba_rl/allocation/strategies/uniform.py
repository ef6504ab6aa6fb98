"""The same number of rollouts for every prompt: GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies.base import Strategy
from coba_rl.allocation.token_solver import cheapest_even, most_even


@dataclass(eq=False, kw_only=True)
class Uniform(Strategy):
    """B = total/P for every prompt; the first prompts get the remainder. Pass rates are kept for the log."""

    name: ClassVar[str] = "uniform"
    budget_units: ClassVar[tuple[str, ...]] = ("rollouts", "tokens")

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return even_split(total, len(p_P))

    def contrast(self, p_P: np.ndarray, mean_budget: float) -> np.ndarray:
        return np.ones(len(p_P))

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return self.plan(p_P, total, low, high)

    def plan_tokens(
        self,
        p_P: np.ndarray,
        cost_P: np.ndarray,
        tokens: float,
        low: int,
        high: int,
        total: int | None = None,
    ) -> np.ndarray:
        if total is None:
            return most_even(cost_P, tokens, low, high)
        return cheapest_even(cost_P, total)
