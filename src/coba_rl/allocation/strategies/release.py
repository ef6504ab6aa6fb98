"""The allocator that was released with the CoBA-RL paper, budget for budget.

Its behaviour, quirks included, is described as [R] in the method page; it is here to be compared with. Use
`coba-paper` for the printed method and `coba` for training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.estimators.window import WindowEstimator
from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies.coba import CobaPaper
from coba_rl.allocation.value import coba_value
from coba_rl.option_types import require

_VERY_HARD, _VERY_EASY = 0.05, 0.99
_UNSEEN = 0.5


@dataclass(eq=False, kw_only=True)
class CobaRelease(CobaPaper):
    """The released allocator: three difficulty classes around the paper's greedy.

    The middle class (0.05 ≤ p ≤ 0.99) gets most of the surplus through the heap of Algorithm 1; what is left
    goes to the very hard, the middle and the very easy prompts in turn, in proportion to 1 − p. The one
    `window` serves the failure rate and the pass rates.

    Prompts never seen count as p = 0.5; a batch of only such prompts, or a total below the minimum, is split
    evenly. One difference: rollouts that the release leaves unspent go to the prompts that have fewest.
    """

    name: ClassVar[str] = "coba-release"
    budget_units: ClassVar[tuple[str, ...]] = ("rollouts",)

    window: int = 1
    kappa: float = 11.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._estimator = WindowEstimator(visits=self.window)

    def validate(self) -> None:
        super().validate()
        require(
            self.estimator in ("window", {"name": "window", "visits": self.window}),
            "estimator",
            self.estimator,
            "'window', the only one of the release, whose visits are the option window",
        )
        require(self.solver == "fast", "solver", self.solver, "nothing here: the release brings its own heap")

    def shape(self) -> tuple[float, float]:
        if not self.capability.started:
            return self.kappa - 2.0, 2.0
        return super().shape()

    def check_feasible(self, num_prompts: int, total: int, low: int, high: int) -> None:
        super().check_feasible(num_prompts, total, min(low, max(total, 0) // max(num_prompts, 1)), high)

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        if np.isnan(p_P).all() or total < len(p_P) * low:
            return even_split(total, len(p_P))
        return self.plan(np.where(np.isnan(p_P), _UNSEEN, p_P), total, low, high)

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        hard, easy = p_P < _VERY_HARD, p_P > _VERY_EASY
        middle = ~hard & ~easy
        surplus = total - len(p_P) * low
        num_middle = int(middle.sum())
        budgets = np.full(len(p_P), low, dtype=np.int64)
        if num_middle:
            share = 0.8 if num_middle > len(p_P) / 2 else 0.6 + 0.4 * num_middle / len(p_P)
            self._tau_used = self.choose_tau(p_P[middle], total / len(p_P))
            self._spend_on_middle(budgets, p_P, middle, int(surplus * share), low, high)
        remaining = total - int(budgets.sum())
        for group in (hard, middle, easy):
            remaining = _spend_in_proportion(budgets, p_P, group, remaining, high)
        for _ in range(remaining):
            budgets[np.where(budgets < high, budgets, np.iinfo(np.int64).max).argmin()] += 1
        return budgets

    def _spend_on_middle(
        self, budgets: np.ndarray, p_P: np.ndarray, middle: np.ndarray, rollouts: int, low: int, high: int
    ) -> None:
        alpha, beta = self.shape()
        p_C = np.clip(p_P, 0.01, 0.99)[middle]
        value_CB = coba_value(np.arange(low, high + 1), p_C[:, None], alpha, beta, self._tau_used)
        # Differences of rounded values need not fall: one that rises is taken right after the one before it.
        gain = np.minimum.accumulate(np.diff(value_CB, axis=1), axis=1).ravel()
        rollouts = min(rollouts, len(gain))
        if rollouts > 0:
            worst = -np.partition(-gain, rollouts - 1)[rollouts - 1]
            bought = gain > worst
            # Ties go to the earlier row, as in the release's heap of (−gain, row).
            bought[np.flatnonzero(gain == worst)[: rollouts - int(bought.sum())]] = True
            budgets[middle] += bought.reshape(len(p_C), -1).sum(axis=1)

    def value(self, p_P: np.ndarray, mean_budget: float, batch_P: np.ndarray | None = None) -> None:
        return None  # Eq. 9 shares within the middle class alone


def _spend_in_proportion(
    budgets: np.ndarray, p_P: np.ndarray, group: np.ndarray, remaining: int, high: int
) -> int:
    """Give out what remains by weight 1 − p, floors first, then one even pass; return what is still left."""
    rows = [i for i in np.flatnonzero(group) if budgets[i] < high]
    weights = [1.0 - min(max(float(p_P[i]), 1e-6), 1.0 - 1e-6) for i in rows]
    weight_sum = sum(weights)
    for i, weight in zip(rows, weights, strict=True):
        added = min(int(remaining * weight / weight_sum), high - int(budgets[i]))
        budgets[i] += added
        remaining -= added
    rows = [i for i in rows if budgets[i] < high]
    for i, share in zip(rows, even_split(remaining, len(rows)), strict=True):
        added = min(int(share), high - int(budgets[i]))
        budgets[i] += added
        remaining -= added
    return remaining
