"""What the lab can measure because it knows every true pass rate. Axes: `_P` prompts of a step."""

from __future__ import annotations

import numpy as np

from coba_rl.allocation import Allocation
from coba_rl.allocation.strategies.base import Strategy


def estimate_errors(allocation: Allocation, truth_P: np.ndarray) -> dict[str, float]:
    """How far the pass rates that were used are from the true ones: root mean square and mean.

    Prompts without an estimate are left out; nothing is returned when no prompt has one.
    """
    known = ~np.isnan(allocation.pass_rates)
    if not known.any():
        return {}
    error = allocation.pass_rates[known] - truth_P[known]
    return {"pass_rate_rmse": float(np.sqrt(np.mean(error**2))), "pass_rate_bias": float(error.mean())}


def coverage(strategy: Strategy, allocation: Allocation, truth_P: np.ndarray) -> dict[str, float]:
    """Share of the estimator's 90 % intervals that hold the true pass rate, over prompts seen before."""
    seen = strategy.seen(allocation.prompt_ids)
    interval = strategy.interval(allocation.prompt_ids, level=0.9)
    if interval is None or not seen.any():
        return {}
    low, high = interval
    return {"interval_coverage": float(np.mean(((low <= truth_P) & (truth_P <= high))[seen]))}


def mechanism(strategy: Strategy, allocation: Allocation, truth_P: np.ndarray) -> dict[str, float]:
    """Rank correlation of the budgets with the strategy's value of believed and of true pass rates.

    The value is taken at the mean budget, so that it depends on the pass rate alone. Only for strategies that have one,
    and steps with budgets and values that differ.
    """
    known = ~np.isnan(allocation.pass_rates)
    believed, budgets = allocation.pass_rates[known], allocation.budgets[known]
    found = {}
    for name, p in (("believed", believed), ("true", truth_P[known])):
        value = strategy.value(p, float(allocation.budgets.mean()), believed)
        correlation = np.nan if value is None else rank_correlation(budgets, value)
        if not np.isnan(correlation):
            found[f"budget_follows_{name}_value"] = correlation
    return found


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side does not vary.

    Example:
        >>> rank_correlation(np.array([1, 2, 3]), np.array([10, 20, 15]))
        0.5
    """
    from scipy.stats import spearmanr  # only the lab needs it

    if len(a) < 2 or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return float("nan")
    return round(float(spearmanr(a, b).statistic), 12)
