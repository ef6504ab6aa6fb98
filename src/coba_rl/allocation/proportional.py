"""Budgets in proportion to weights, exact between the points where a bound begins to bind."""

from __future__ import annotations

import numpy as np

from coba_rl.allocation.solvers import check_feasible, even_split


def proportional(weight_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    """Budgets in proportion to weights, within bounds, rounded by largest remainder.

    Finds s with Σ clip(s·w, low, high) = total, rounds down, and gives what is missing to the largest
    remainders, the earlier prompt first among equals. O(P log P), whatever the weights: only their ratios count.

    Args:
        weight_P: Finite weights ≥ 0. A prompt of weight 0 gets the minimum until all others have the maximum.
        total: Rollouts to spend.
        low: Fewest rollouts of a prompt.
        high: Most rollouts of a prompt.

    Returns:
        (P,) int64 budgets that sum to `total`.

    Raises:
        InfeasibleBudgetError: The total does not fit the bounds.

    Example:
        >>> proportional(np.array([1.0, 3.0, 0.0]), total=18, low=2, high=20).tolist()
        [4, 12, 2]
        >>> proportional(np.array([1e-200, 1.0, 3.0]), total=18, low=2, high=20).tolist()
        [2, 4, 12]
    """
    check_feasible(len(weight_P), total, low, high)
    weight_P = np.asarray(weight_P, dtype=float)
    live_P = weight_P > 0.0
    budgets = np.where(live_P, high, low).astype(np.int64)
    if (missing := total - int(budgets.sum())) >= 0:
        num_idle = len(budgets) - int(live_P.sum())
        budgets[~live_P] = even_split(missing + num_idle * low, num_idle)
    else:
        budgets[live_P] = _proportional_live(weight_P[live_P], total - low * int((~live_P).sum()), low, high)
    return budgets


def _proportional_live(weight_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    """`proportional` for positive weights and a total that does not give everyone the maximum."""
    rising_P, full_P = _at_breakpoint(weight_P, total, low, high)
    budgets = np.where(full_P, high, low).astype(np.int64)
    if rising_P.any():
        rising = weight_P[rising_P]
        rising = np.ldexp(rising, -np.frexp(rising.max())[1])  # by a power of two: exact, and no overflow
        spendable = total - int(budgets[~rising_P].sum())
        remainder_P = np.zeros(len(weight_P))
        share, remainder_P[rising_P] = np.divmod(spendable * rising, rising.sum())
        budgets[rising_P] = np.clip(share, low, high)
        room = np.flatnonzero(budgets < high)
        order = room[np.argsort(-remainder_P[room], kind="stable")]
        budgets[order[: total - int(budgets.sum())]] += 1
    return budgets


def _at_breakpoint(weight_P: np.ndarray, total: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Which prompts lie strictly between the bounds at Σ clip(s·w, low, high) = total, and which are full.

    The sum is linear in s between the points where a prompt leaves `low` or reaches `high`. These are sorted, and
    the last one that does not spend more than the total is bisected.
    """
    num_prompts = len(weight_P)
    with np.errstate(divide="ignore"):  # a bound of 0
        point_K = np.log(np.repeat([low, high], num_prompts)) - np.tile(np.log(weight_P), 2)
    order = np.argsort(point_K, kind="stable")
    rank_K = np.empty(2 * num_prompts, dtype=np.int64)
    rank_K[order] = np.arange(2 * num_prompts)
    leaves_P, fills_P = rank_K[:num_prompts], rank_K[num_prompts:]

    def spent(k: int) -> float:
        bound, pivot = (low, high)[order[k] // num_prompts], weight_P[order[k] % num_prompts]
        with np.errstate(over="ignore", under="ignore"):
            share_P = np.clip(bound * np.minimum(weight_P / pivot, high), low, high)
        return float(np.where(fills_P <= k, high, np.where(leaves_P > k, low, share_P)).sum())

    least, most = 0, 2 * num_prompts - 1  # at the first everyone has the minimum, at the last the maximum
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if spent(middle) <= total else (least, middle)
    return (leaves_P <= least) & (fills_P > least), fills_P <= least
