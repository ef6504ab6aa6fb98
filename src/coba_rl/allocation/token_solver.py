"""Exact budgets when tokens are limited, where a rollout of prompt i is expected to generate c_i of them.

`within_tokens` maximises Σ V_i(B_i) subject to Σ B_i = total, Σ c_i·B_i ≤ tokens and low ≤ B_i ≤ high. With
multipliers λ of the total and μ ≥ 0 of the tokens, the rollouts bought are those of

    gain_i(B) ≥ λ + μ·c_i = e^a · (cos φ + sin φ·d_i),    d_i = (c_i − mean c) / max |c − mean c|.

The angle φ says what a rollout of each prompt costs relative to the others, a how dear rollouts are altogether. So for
a given angle the total is spent by `fast`, on gains divided by these prices: all in logarithms, however small gains are.
At φ = 0 all prices are equal and the limit does not count; the larger φ, the fewer tokens. A search finds the angle
where the limit begins to hold. The budgets on its two sides differ by rollouts that are there as good for their price as each
other: these are exchanged one by one, the best first, as long as the limit holds.

`spend_tokens` has no total: rollouts are bought by gain per token until the next one would exceed the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coba_rl.allocation.solvers import buy, check_feasible, fast, level
from coba_rl.allocation.value import Gains, search_budgets
from coba_rl.errors import InfeasibleBudgetError

_MAX_SEARCH_STEPS = 100
_SAME_ANGLE = (
    1e-8  # by so little, of the price of a rollout, do those rollouts differ that a mixture takes for equal
)
_NOTHING = 60.0  # e^−60 of the least gain: nothing, whatever it is divided by
_ROUNDING = 1e-12
"""Relative error of a sum of products: by so much a limit may be exceeded."""


def affords(tokens: float, cost_P: np.ndarray, budgets: np.ndarray) -> bool:
    """Whether budgets are expected to generate at most so many tokens, rounding aside."""
    return bool((cost_P * budgets).sum() <= tokens * (1.0 + _ROUNDING))


def cheapest_even(cost_P: np.ndarray, total: int) -> np.ndarray:
    """Equal budgets; the cheapest prompts get the remainder, so that tokens are at most total/P · Σ cost.

    Example:
        >>> cheapest_even(np.array([30.0, 10.0, 20.0]), 8).tolist()
        [2, 3, 3]
    """
    share, remainder = divmod(total, max(len(cost_P), 1))
    budgets = np.full(len(cost_P), share, dtype=np.int64)
    budgets[np.argsort(cost_P, kind="stable")[:remainder]] += 1
    return budgets


def most_even(cost_P: np.ndarray, tokens: float, low: int, high: int) -> np.ndarray:
    """Equal budgets up to one rollout, more for the first prompts, of at most so many tokens.

    Example:
        >>> most_even(np.array([30.0, 10.0, 20.0]), 165.0, low=1, high=9).tolist()
        [3, 3, 2]
    """
    fewest_P, most_P = (np.full(len(cost_P), bound, dtype=np.int64) for bound in (low, high))
    return level(cost_P, tokens * (1.0 + _ROUNDING), fewest_P, most_P)


def within_tokens(
    gains: Gains, cost_P: np.ndarray, total: int, tokens: float, low: int, high: int
) -> np.ndarray:
    """The best budgets of exactly `total` rollouts and at most `tokens` expected tokens.

    Exact for fractional rollouts; in whole ones at most the value of one rollout below that. Where the limit does not
    bind, the budgets of `fast`. A rollout that is worth nothing counts for less than any other, but not for nothing, so
    that the cheaper of two such is bought. O(P log(high − low)) a step of the search.

    Args:
        gains: Marginal gains that fall with the budget.
        cost_P: (P,) expected tokens of a rollout of each prompt, > 0.
        total: Rollouts to spend.
        tokens: Limit of Σ cost·budget.
        low: Fewest rollouts of a prompt.
        high: Most rollouts of a prompt.

    Returns:
        (P,) int64 budgets.

    Raises:
        InfeasibleBudgetError: The total does not fit the bounds, or even its cheapest use the limit.

    Example:
        >>> from coba_rl.allocation.value import VarianceGains
        >>> gains, cost = VarianceGains(np.array([0.5, 0.5, 0.1])), np.array([100.0, 50.0, 50.0])
        >>> within_tokens(gains, cost, total=24, tokens=1600.0, low=2, high=16).tolist()
        [8, 10, 6]
        >>> fast(gains, 24, 2, 16).tolist()  # 1650 tokens
        [9, 9, 6]
    """
    check_feasible(gains.size, total, low, high)
    dear_P = fast(gains, total, low, high)
    if affords(tokens, cost_P, dear_P):
        return dear_P
    problem = _Limited(gains, cost_P, total, tokens, low, high)
    cheap_P = problem.cheapest()
    if not affords(tokens, cost_P, cheap_P):
        least = float((cost_P * cheap_P).sum())
        raise InfeasibleBudgetError(
            f"tokens={tokens:g}: {total} rollouts of {gains.size} prompts are expected to take at least {least:g}. Raise "
            "the tokens, or take fewer rollouts."
        )
    return problem.mixture(*problem.at_limit(cheap_P, dear_P))


def spend_tokens(gains: Gains, cost_P: np.ndarray, tokens: float, low: int, high: int) -> np.ndarray:
    """The best budgets of at most `tokens` expected tokens, whatever number of rollouts that is.

    Rollouts are bought in the order of gain per token, then of the smaller budget, until the next one would exceed the
    limit.

    Args:
        gains, cost_P, tokens, low, high: As for `within_tokens`.

    Returns:
        (P,) int64 budgets, less than one rollout below the limit unless all are `high`.

    Raises:
        InfeasibleBudgetError: The limit is below the tokens of `low` rollouts of each prompt.

    Example:
        >>> from coba_rl.allocation.value import VarianceGains
        >>> gains, cost = VarianceGains(np.array([0.5, 0.5, 0.1])), np.array([100.0, 50.0, 50.0])
        >>> spend_tokens(gains, cost, tokens=1600.0, low=2, high=16).tolist()  # 1550, and the next takes 100
        [7, 11, 6]
    """
    check_tokens(cost_P, tokens, low)
    priced = _Priced(gains, np.log(cost_P), _floor(gains, low, high), low)
    return buy(priced, cost_P, tokens * (1.0 + _ROUNDING), low, high)


def check_tokens(cost_P: np.ndarray, tokens: float, low: int) -> None:
    """Raise `InfeasibleBudgetError` unless tokens are a number that at least `low` rollouts of each prompt fit in."""
    least = low * float(cost_P.sum())
    if not (math.isfinite(tokens) and least <= tokens * (1.0 + _ROUNDING)):
        raise InfeasibleBudgetError(
            f"tokens={tokens!r} for {len(cost_P)} prompts: expected a number of at least {least:g}, what {low} rollouts of "
            "each, the fewest, are expected to take. Raise the tokens, lower min_budget or pilot, or take fewer prompts."
        )


class _Priced(Gains):
    """Gains divided by prices; what has no price or less is bought first.

    Args:
        gains: What a rollout is worth.
        log_price_P: −inf: free.
        floor: Log gain of a rollout that is worth nothing.
        low: Fewest rollouts of a prompt.
    """

    def __init__(self, gains: Gains, log_price_P: np.ndarray, floor: float, low: int) -> None:
        self._gains, self._floor = gains, floor
        self._free_P = log_price_P == -np.inf
        self._log_price_P = np.where(self._free_P, 0.0, log_price_P)
        first_P = np.maximum(gains.log_gain(np.full(gains.size, low)), floor) - self._log_price_P
        self._top = float(first_P.max(initial=0.0)) + 1.0

    @property
    def size(self) -> int:
        return self._gains.size

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        price_P, free_P = self._log_price_P, self._free_P
        if budget.ndim == 2:
            price_P, free_P = price_P[:, None], free_P[:, None]
        return np.where(free_P, self._top, np.maximum(self._gains.log_gain(budget), self._floor) - price_P)

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        least_P = threshold + self._log_price_P
        counts = self._gains.count_above(least_P, low, high)
        counts = np.where(least_P <= self._floor, high, counts)
        return np.where(self._free_P, high if threshold <= self._top else low, counts)


def _floor(gains: Gains, low: int, high: int) -> float:
    """A log gain below that of every rollout that is worth anything."""
    fewest_P, most_P = (np.full(gains.size, bound, dtype=np.int64) for bound in (low, high))
    reach_P = search_budgets(gains, np.finfo(float).min, fewest_P, most_P)
    worst_P = gains.log_gain(np.maximum(reach_P - 1, low))[reach_P > low]
    least = float(worst_P.min(initial=0.0))
    return least - _NOTHING - 1e-9 * abs(least)


@dataclass(frozen=True, eq=False)
class _Limited:
    """The problem of `within_tokens`, whose limit binds; names as there."""

    gains: Gains
    cost_P: np.ndarray
    total: int
    tokens: float
    low: int
    high: int

    @cached_property
    def _floor(self) -> float:
        return _floor(self.gains, self.low, self.high)

    @cached_property
    def _relative_P(self) -> np.ndarray:
        """d: how far each cost is from the mean, the farthest by 1."""
        difference_P = self.cost_P - self.cost_P.mean()
        return difference_P / max(float(np.abs(difference_P).max()), np.finfo(float).tiny)

    @cached_property
    def _pivot(self) -> int:
        """The prompt that the total ends at, if the cheapest are given `high` rollouts one after the other."""
        num_prompts = len(self.cost_P)
        num_full = (self.total - num_prompts * self.low) // max(self.high - self.low, 1)
        return int(np.argsort(self.cost_P, kind="stable")[min(num_full, num_prompts - 1)])

    def _log_price(self, angle: float) -> np.ndarray:
        price_P = math.cos(angle) + math.sin(angle) * self._relative_P
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(price_P, 0.0))

    def _solve(self, log_price_P: np.ndarray) -> np.ndarray:
        priced = _Priced(self.gains, log_price_P, self._floor, self.low)
        return fast(priced, self.total, self.low, self.high)

    def _excess(self, budgets: np.ndarray) -> float:
        return float((self.cost_P * budgets).sum()) - self.tokens

    def cheapest(self) -> np.ndarray:
        """The budgets that take fewest tokens; among prompts of equal cost, the best."""
        difference_P = self.cost_P - self.cost_P[self._pivot]
        first_P = self.gains.log_gain(np.full(self.gains.size, self.low))
        shut = max(float(first_P.max()) - self._floor, 0.0) + 1.0
        return self._solve(np.where(difference_P < 0.0, -np.inf, np.where(difference_P > 0.0, shut, 0.0)))

    def at_limit(self, cheap_P: np.ndarray, dear_P: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Budgets within the limit and beyond it, both the best at the angle where it begins to hold; the angle."""
        # At the last one the pivot's price is 0, and that of the prompts cheaper than it is below 0.
        near, far, width = 0.0, math.atan2(1.0, -self._relative_P[self._pivot]), math.inf
        over, under = self._excess(dear_P), self._excess(cheap_P)
        for _ in range(_MAX_SEARCH_STEPS):
            share = (
                over / (over - under) if far - near < 0.7 * width else 0.5
            )  # bisect where that does not get on
            width = far - near
            angle = near + width * min(max(share, 0.01), 0.99)
            is_one_swap = np.abs(dear_P - cheap_P).sum() == 2
            if is_one_swap:
                angle = self._angle_of_swap(cheap_P, dear_P)
            if far - near < _SAME_ANGLE or not near < angle < far:
                break
            budgets = self._solve(self._log_price(angle))
            if is_one_swap and ((budgets == cheap_P).all() or (budgets == dear_P).all()):
                return cheap_P, dear_P, angle
            if affords(self.tokens, self.cost_P, budgets):
                far, cheap_P, under, over = angle, budgets, self._excess(budgets), 0.5 * over
            else:
                near, dear_P, over, under = angle, budgets, self._excess(budgets), 0.5 * under
        return cheap_P, dear_P, 0.5 * (near + far)

    def _angle_of_swap(self, cheap_P: np.ndarray, dear_P: np.ndarray) -> float:
        """Where the one rollout that the dear budgets have more is as good for its price as the one they have less."""
        gained, lost = int((dear_P - cheap_P).argmax()), int((dear_P - cheap_P).argmin())
        log_gain_P = np.maximum(self.gains.log_gain(np.minimum(cheap_P, dear_P)), self._floor)
        ratio = math.exp(min(log_gain_P[lost] - log_gain_P[gained], 0.0))
        return math.atan2(1.0 - ratio, ratio * self._relative_P[gained] - self._relative_P[lost])

    def mixture(self, cheap_P: np.ndarray, dear_P: np.ndarray, angle: float) -> np.ndarray:
        """The best budgets within the limit on the way from the cheap to the dear ones, rollout by rollout."""
        log_price_P = np.maximum(self._log_price(angle), math.log(np.finfo(float).tiny))
        gained, value_gained = self._between(cheap_P, dear_P, log_price_P)
        lost, value_lost = (units[::-1] for units in self._between(dear_P, cheap_P, log_price_P))
        excess_K = self._excess(cheap_P) + np.cumsum(self.cost_P[gained] - self.cost_P[lost])
        most = max(value_gained.max(), value_lost.max(), self._floor)
        value_K = np.cumsum(np.exp(value_gained - most) - np.exp(value_lost - most))
        value_K[excess_K > _ROUNDING * self.tokens] = 0.0
        num = int(value_K.argmax()) + 1 if value_K.max() > 0.0 else 0
        budgets = cheap_P.copy()
        np.add.at(budgets, gained[:num], 1)
        np.subtract.at(budgets, lost[:num], 1)
        return budgets

    def _between(
        self, fewer_P: np.ndarray, more_P: np.ndarray, log_price_P: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The prompt and the log gain of each rollout from the one budgets to the other, the best for its price first."""
        budget_PW = fewer_P[:, None] + np.arange(max(int((more_P - fewer_P).max()), 0))
        prompt_U, slot_U = np.nonzero(budget_PW < more_P[:, None])
        log_gain_U = self.gains.log_gain(budget_PW)[prompt_U, slot_U]
        worth_U = np.maximum(log_gain_U, self._floor) - log_price_P[prompt_U]
        order = np.lexsort((prompt_U, budget_PW[prompt_U, slot_U], self.cost_P[prompt_U], -worth_U))
        return prompt_U[order], log_gain_U[order]
