"""What is logged of an allocation and of its outcomes. Axes: `_P` prompts of the batch, `_R` judged rollouts."""

from __future__ import annotations

import numpy as np


def measure_allocation(
    budget_P: np.ndarray, p_P: np.ndarray, seen_P: np.ndarray, bounds: tuple[int, int]
) -> dict[str, float]:
    """How the rollouts are spread; empty for an empty batch.

    Args:
        budget_P: Rollouts of each prompt.
        p_P: Pass rates that the budgets came from, NaN where unknown.
        seen_P: Whether each prompt has a history.
        bounds: (fewest, most) rollouts of a prompt.
    """
    if not len(budget_P):
        return {}
    low, high = bounds
    total = float(budget_P.sum())
    known = ~np.isnan(p_P)
    p, n = p_P[known], np.maximum(budget_P[known], 1)  # no group at all is as dead as one of 1
    return {
        "budget_min": float(budget_P.min()),
        "budget_mean": float(budget_P.mean()),
        "budget_max": float(budget_P.max()),
        "share_at_min": float((budget_P <= low).mean()),
        "share_at_max": float((budget_P >= high).mean()),
        "effective_prompts": float(total**2 / max((budget_P.astype(float) ** 2).sum(), 1.0)),
        "unseen_prompts": float((~seen_P).sum()),
        "expected_dead_groups": float(np.mean(p**n + (1.0 - p) ** n)) if known.any() else 0.0,
    }


def measure_weights(weight_P: np.ndarray | None) -> dict[str, float]:
    """How far weights are from equal; empty where there are none."""
    if weight_P is None or not len(weight_P):
        return {}
    return {
        "weight_min": float(weight_P.min()),
        "weight_max": float(weight_P.max()),
        "effective_prompts_by_weight": float(weight_P.sum() ** 2 / max((weight_P**2).sum(), 1.0)),
    }


def measure_outcomes(
    success_R: np.ndarray, group_R: np.ndarray, attempts_P: np.ndarray, successes_P: np.ndarray
) -> dict[str, float]:
    """Dead groups and the success of a rollout, on raw success: a group is dead when its rollouts all scored alike."""
    tried = attempts_P > 0
    mean_P = np.divide(successes_P, attempts_P, out=np.zeros_like(successes_P), where=tried)
    spread_P = np.zeros(len(attempts_P))
    np.maximum.at(spread_P, group_R, np.abs(success_R - mean_P[group_R]))
    dead = tried & (spread_P < 1e-6)
    return {
        "success_per_rollout": float(success_R.mean()),
        "dead_groups": float(dead.sum() / tried.sum()),
        "dead_groups_all_right": float((dead & (mean_P > 0.5)).sum() / tried.sum()),
        "dead_groups_all_wrong": float((dead & (mean_P <= 0.5)).sum() / tried.sum()),
    }
