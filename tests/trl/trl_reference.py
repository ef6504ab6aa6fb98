"""Advantages group by group in plain NumPy: slow, obvious, and written without a look at tensors."""

from __future__ import annotations

import math

import numpy as np

FLOOR = 1e-4


def spread(values: np.ndarray) -> float:
    """Sample standard deviation; NaN for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def z_scores(group: np.ndarray) -> np.ndarray:
    """(x − mean)/(std + floor) of the judged entries of one group; 0 where there is nothing to compare."""
    scores = np.full(len(group), np.nan)
    judged = ~np.isnan(group)
    values = group[judged]
    if len(values) > 1 and values.min() != values.max():
        scores[judged] = (values - values.mean()) / (spread(values) + FLOOR)
    else:
        scores[judged] = 0.0
    return scores


def slices(budgets: list[int]) -> list[slice]:
    """Where each group lies."""
    ends = np.cumsum(budgets)
    return [slice(int(end - budget), int(end)) for end, budget in zip(ends, budgets, strict=True)]


def reference_advantages(
    rewards: np.ndarray, weights: np.ndarray, budgets: list[int], scale: str, aggregation: str
) -> np.ndarray:
    """(R,) advantages from (R, F) rewards."""
    unjudged = np.isnan(rewards).all(axis=1)
    groups = slices(budgets)
    if aggregation == "normalize_then_sum":
        scores = np.vstack([np.column_stack([z_scores(column) for column in rewards[g].T]) for g in groups])
        total = np.nansum(scores * weights, axis=1)
        judged = total[~unjudged]
        advantages = np.zeros(len(total))
        if len(judged) > 1:
            advantages = (total - judged.mean()) / (spread(judged) + FLOOR)
        for g, budget in zip(groups, budgets, strict=True):
            if budget == 1:
                advantages[g] = 0.0
    else:
        total = np.nansum(rewards * weights, axis=1)
        total[unjudged] = np.nan
        batch_std = spread(total[~unjudged])
        advantages = np.zeros(len(total))
        for g in groups:
            group = total[g]
            values = group[~np.isnan(group)]
            if len(values) < 2 or values.min() == values.max():
                continue
            divisor = {"none": 1.0, "group": spread(values) + FLOOR, "batch": batch_std + FLOOR}[scale]
            advantages[g] = (group - values.mean()) / divisor
    advantages[unjudged] = 0.0
    return advantages
