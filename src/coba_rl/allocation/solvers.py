"""Exact solvers of the integer budget problem (Eq. 3).

Maximise Σ V_i(B_i) subject to Σ B_i = total and low ≤ B_i ≤ high, for integers B_i.

`fast` and `heap` break ties alike: among rollouts of equal gain, first the prompt that has fewer, then the one
that comes earlier in the batch. So equal prompts never differ by more than one rollout. Dynamic programming
takes the most even of the best budgets, as far as sums of values in floating point tell them apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from coba_rl.allocation.value import Gains, search_budgets
from coba_rl.errors import InfeasibleBudgetError

_MAX_SEARCH_STEPS = 100
_MARGIN = 2  # rollouts before and after the threshold that are listed for each prompt
_CLOSE_ENOUGH = 2  # rollouts from the total at which the threshold search may stop


def check_feasible(num_prompts: int, total: int, low: int, high: int) -> None:
    """Raise `InfeasibleBudgetError` unless `total` can be spent within the bounds."""
    least, most = num_prompts * low, num_prompts * high
    if least <= total <= most:
        return
    advice = (
        f"raise the total to {least}, lower min_budget, or take fewer prompts"
        if total < least
        else f"lower the total to {most}, raise max_budget, or take more prompts"
    )
    raise InfeasibleBudgetError(
        f"total={total} rollouts cannot be given to {num_prompts} prompts within bounds ({low}, {high}): "
        f"expected between {least} and {most}; {advice}."
    )


def even_split(total: int, num_prompts: int) -> np.ndarray:
    """Equal budgets; the first prompts get the remainder.

    Example:
        >>> even_split(8, 3).tolist()
        [3, 3, 2]
    """
    if num_prompts == 0:
        return np.zeros(0, dtype=np.int64)
    share, remainder = divmod(total, num_prompts)
    return share + (np.arange(num_prompts) < remainder).astype(np.int64)


def heap(gains: Gains, total: int, low: int, high: int) -> np.ndarray:
    """Algorithm 1 of CoBA-RL: a max-heap of marginal gains, one pop a rollout. O(R log P) for R rollouts.

    Args:
        gains: Marginal gains that fall with the budget.
        total: Rollouts to spend.
        low: Fewest rollouts of a prompt.
        high: Most rollouts of a prompt.

    Returns:
        (P,) int64 budgets that sum to `total`.

    Raises:
        InfeasibleBudgetError: The total does not fit the bounds.
    """
    check_feasible(gains.size, total, low, high)
    budgets = np.full(gains.size, low, dtype=np.int64)
    table = gains.log_gain(
        np.broadcast_to(np.arange(low, max(high, low + 1)), (gains.size, max(high - low, 1)))
    )
    queue = [(-table[i, 0], low, i) for i in range(gains.size)] if high > low else []
    heapq.heapify(queue)
    for _ in range(total - gains.size * low):
        _, budget, i = heapq.heappop(queue)
        budgets[i] = budget + 1
        if budget + 1 < high:
            heapq.heappush(queue, (-table[i, budget + 1 - low], budget + 1, i))
    return budgets


def dynamic_programming(value_PB: np.ndarray, total: int, low: int) -> np.ndarray:
    """Exact for any value function, falling gains or not; the oracle of small tests. O(P · R · (high − low)).

    Args:
        value_PB: (P, high − low + 1): value of each prompt at the budgets low, low + 1, …, high.
        total: Rollouts to spend.
        low: Fewest rollouts of a prompt.

    Returns:
        (P,) int64 budgets that sum to `total` and have the greatest possible sum of values; among those,
        ones with the smallest sum of squares.

    Raises:
        InfeasibleBudgetError: The total does not fit the bounds.
    """
    num_prompts, num_choices = value_PB.shape
    check_feasible(num_prompts, total, low, low + num_choices - 1)
    surplus = total - num_prompts * low
    best = np.full(surplus + 1, -np.inf)
    best[0] = 0.0
    squares = np.where(best == 0.0, 0.0, np.inf)  # Σ extra² behind `best`: breaks ties towards even budgets
    choice = np.zeros((num_prompts, surplus + 1), dtype=np.int64)
    for i in range(num_prompts):
        following, unevenness = np.full(surplus + 1, -np.inf), np.full(surplus + 1, np.inf)
        for extra in range(min(num_choices, surplus + 1)):
            reached = best[: surplus + 1 - extra] + value_PB[i, extra]
            uneven = squares[: surplus + 1 - extra] + extra**2
            tied = (reached == following[extra:]) & (uneven < unevenness[extra:])
            better = tied | (reached > following[extra:])
            following[extra:][better] = reached[better]
            unevenness[extra:][better] = uneven[better]
            choice[i, extra:][better] = extra
        best, squares = following, unevenness
    budgets = np.empty(num_prompts, dtype=np.int64)
    for i in reversed(range(num_prompts)):
        budgets[i] = low + choice[i, surplus]
        surplus -= choice[i, surplus]
    return budgets


def fast(gains: Gains, total: int, low: int, high: int) -> np.ndarray:
    """The budgets of `heap`, ties included, in a few vectorised passes.

    Why it is exact: gains fall with the budget, so the heap takes the R best rollouts of the whole batch in
    the order (gain, then smaller budget, then earlier prompt). These are all the rollouts above some gain and
    some of those at it. The solver searches that threshold, lists the rollouts near it, takes the best of
    them, and then *proves* the result: every unlisted rollout it kept must be better than the worst it took,
    and every unlisted one it left must be worse. If the proof fails, as where a float cannot tell many gains
    apart, the threshold is bisected over the floats themselves. O(P log(high − low)) time and O(P) memory.

    Args, Returns, Raises: as `heap`.
    """
    check_feasible(gains.size, total, low, high)
    if gains.size == 0 or high == low:
        return np.full(gains.size, low, dtype=np.int64)
    base_P = np.maximum(_near_optimum(gains, total, low, high) - _MARGIN, low)
    budgets, proven = _take_best(gains, total, low, high, base_P, min(2 * _MARGIN, high - low))
    return budgets if proven else buy(gains, np.ones(gains.size), total, low, high)


def _near_optimum(gains: Gains, total: int, low: int, high: int) -> np.ndarray:
    """Budgets above a gain threshold that spends nearly the total: false position with bisection steps."""
    last_P = gains.log_gain(np.full(gains.size, high - 1))
    least = float(last_P[last_P > -np.inf].min(initial=0.0))
    most = float(gains.log_gain(np.full(gains.size, low)).max())

    def excess(threshold: float) -> tuple[int, np.ndarray]:
        counts = gains.count_above(threshold, low, high)
        return int(counts.sum()) - total, counts

    over, counts = excess(least)
    if over <= _CLOSE_ENOUGH or most <= least:
        return counts
    under = gains.size * low - total
    for step in range(_MAX_SEARCH_STEPS):
        middle = 0.5 * (least + most)
        if step % 3 and over - under > 0:
            middle = min(max(least + (most - least) * (over / (over - under)), least), most)
        if middle in (least, most):
            middle = 0.5 * (least + most)
            if middle in (least, most):
                break
        found, counts = excess(middle)
        if abs(found) <= _CLOSE_ENOUGH:
            break
        if found > 0:
            least, over = middle, found
        else:
            most, under = middle, found
    return counts


def _take_best(
    gains: Gains, total: int, low: int, high: int, base_P: np.ndarray, width: int
) -> tuple[np.ndarray, bool]:
    """Buy the best rollouts among the `width` that follow each prompt's base; say whether that is optimal."""
    wanted = total - int(base_P.sum())
    budget_PW = base_P[:, None] + np.arange(width)
    listed_PW = budget_PW < high
    num_listed = int(listed_PW.sum())
    if not 0 <= wanted <= num_listed:
        return base_P, False
    gain_PW = gains.log_gain(budget_PW)
    # The last rollout before the list is bought, the first one after it is not: both bound the proof.
    before_P = np.where(base_P > low, gains.log_gain(np.maximum(base_P - 1, low)), np.inf)
    after_P = np.where(base_P + width < high, gains.log_gain(base_P + width), -np.inf)
    unlisted = bool((base_P + width < high).any())
    flat = gain_PW[listed_PW]
    if wanted == 0:
        best_left = max(float(flat.max(initial=-np.inf)), float(after_P.max()))
        return base_P.copy(), bool(before_P.min() > best_left)
    worst = -np.partition(-flat, wanted - 1)[wanted - 1]
    above_PW = listed_PW & (gain_PW > worst)
    budgets = base_P + above_PW.sum(axis=1)
    tied_P, tied_W = np.nonzero(listed_PW & (gain_PW == worst))
    order = np.lexsort((tied_P, budget_PW[tied_P, tied_W]))[: total - int(budgets.sum())]
    np.add.at(budgets, tied_P[order], 1)
    after_is_worse = not unlisted or bool(after_P.max() < worst)
    return budgets, bool(before_P.min() > worst) and after_is_worse


def buy(gains: Gains, cost_P: np.ndarray, limit: float, low: int, high: int) -> np.ndarray:
    """The best rollouts one by one until the next one would cost too much; any falling gains, at most 64 thresholds.

    Args:
        gains: Say which rollouts are best; ties go to the prompt that has fewer, then to the earlier one.
        cost_P: What a rollout of each prompt costs, > 0.
        limit: Most that all budgets may cost, at least what `low` rollouts each do.
        low: Fewest rollouts of a prompt.
        high: Most rollouts of a prompt.

    Returns:
        (P,) int64 budgets.
    """
    # The rollouts below `fewest_P` are bought, those from `most_P` on are not.
    fewest_P, most_P = (np.full(gains.size, bound, dtype=np.int64) for bound in (low, high))
    while (open_P := fewest_P < most_P).any():
        best = gains.log_gain(fewest_P)[open_P].max()
        worst = gains.log_gain(np.maximum(most_P - 1, low))[open_P].min()
        if not worst < best:  # what is left is worth the same
            break
        reach_P = search_budgets(gains, _float_between(worst, best), fewest_P, most_P)
        if (cost_P * reach_P).sum() < limit:
            fewest_P = reach_P
        else:
            most_P = reach_P
    return level(cost_P, limit, fewest_P, most_P)


def _float_between(least: float, most: float) -> float:
    """A float in (least, most] that has as many floats below it as above it, ±1."""

    def rank(value: float) -> int:
        bits = int(np.float64(abs(value)).view(np.int64))
        return bits if value >= 0.0 else -bits

    middle = (rank(least) + rank(most) + 1) // 2
    return float(np.copysign(np.int64(abs(middle)).view(np.float64), middle))


def level(cost_P: np.ndarray, limit: float, fewest_P: np.ndarray, most_P: np.ndarray) -> np.ndarray:
    """Raise the smallest budgets, the earlier prompt first, from `fewest_P` until the next would exceed the limit.

    Example:
        >>> level(np.array([1.0, 2.0, 1.0]), 12.0, np.array([1, 1, 4]), np.array([9, 9, 9])).tolist()
        [3, 2, 4]
    """
    least, most = int(fewest_P.min(initial=0)), int(most_P.max(initial=0))
    while least < most:
        middle = (least + most + 1) // 2
        too_much = (cost_P * np.clip(middle, fewest_P, most_P)).sum() > limit
        least, most = (least, middle - 1) if too_much else (middle, most)
    budgets = np.clip(least, fewest_P, most_P)
    raised = np.flatnonzero((budgets == least) & (budgets < most_P))
    fits = np.cumsum(cost_P[raised]) <= limit - (cost_P * budgets).sum()
    budgets[raised[fits]] += 1
    return budgets


def _solve_by_dynamic_programming(gains: Gains, total: int, low: int, high: int) -> np.ndarray:
    budget_PB = np.broadcast_to(np.arange(low, high), (gains.size, high - low))
    log_gain_PB = gains.log_gain(budget_PB)
    # Only ratios of gains matter: the largest becomes 1, so that no scale of values underflows.
    gain_PB = np.exp(log_gain_PB - max(float(log_gain_PB.max(initial=-np.inf)), np.finfo(float).min))
    value_PB = np.concatenate([np.zeros((gains.size, 1)), np.cumsum(gain_PB, axis=1)], axis=1)
    return dynamic_programming(value_PB, total, low)


SOLVERS: dict[str, Callable[[Gains, int, int, int], np.ndarray]] = {
    "fast": fast,
    "heap": heap,
    "dynamic-programming": _solve_by_dynamic_programming,
}
"""Solvers by name, each `(gains, total, low, high) → budgets`."""
