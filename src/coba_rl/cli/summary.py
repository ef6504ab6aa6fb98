"""What a training run came to: accuracy before and after, rollouts spent, and where they went."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from coba_rl.cli.tables import format_estimate, print_json, print_table

BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Edges of the pass-rate bins in which rollouts are counted."""


def where_rollouts_went(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Share of prompts and rollouts, and success, by the pass rate that was believed when allocating.

    Args:
        records: Lines of `allocations.jsonl`.

    Returns:
        One row a bin, `unknown` first; bins without prompts are left out.
    """
    columns = [(r["pass_rate"], r["budget"], r["successes"], r["attempts"]) for r in records]
    if not columns:
        return []
    p, budget, successes, attempts = (
        np.array([math.nan if v is None else v for v in column], dtype=float)
        for column in zip(*columns, strict=True)
    )
    place = np.where(np.isnan(p), -1, np.clip(np.searchsorted(BINS, p, side="right") - 1, 0, len(BINS) - 2))
    rows = []
    for index in range(-1, len(BINS) - 1):
        here = place == index
        if not here.any():
            continue
        judged = attempts[here].sum()
        rows.append(
            {
                "pass_rate": "unknown" if index < 0 else f"{BINS[index]:g}–{BINS[index + 1]:g}",
                "share_of_prompts": float(here.mean()),
                "share_of_rollouts": float(budget[here].sum() / budget.sum()),
                "mean_budget": float(budget[here].mean()),
                "success": float(successes[here].sum() / judged) if judged else None,
            }
        )
    return rows


def print_summary(summary: dict[str, Any], as_json: bool) -> None:
    """Print a run's summary as tables or JSON."""
    if as_json:
        print_json(summary)
        return
    rows = [[name, format_estimate(summary["heldout"][name])] for name in ("before", "after", "gain")]
    problems = summary["heldout"]["num_problems"]
    title = (
        f"Held-out accuracy, avg@{summary['heldout']['num_samples']} over {problems} problems (95 % interval)"
    )
    print_table(title, ["", "accuracy"], rows)
    spent = [
        ["strategy", str(summary["strategy"])],
        ["steps", f"{summary['steps']:,}"],
        ["rollouts", f"{summary['rollouts']:,}"],
        ["budgets, fewest to most", f"{summary['budget_min']} to {summary['budget_max']}"],
        ["dead groups, mean share", f"{summary['dead_groups']:.1%}"],
        ["training time", f"{summary['seconds']:.0f} s"],
    ]
    print_table("Rollouts spent", ["", ""], spent)
    went = [
        [
            row["pass_rate"],
            f"{row['share_of_prompts']:.1%}",
            f"{row['share_of_rollouts']:.1%}",
            f"{row['mean_budget']:.1f}",
            "–" if row["success"] is None else f"{row['success']:.3f}",
        ]
        for row in summary["where_rollouts_went"]
    ]
    print_table(
        "Where they went, by the pass rate believed at the time",
        ["pass rate", "prompts", "rollouts", "mean budget", "success"],
        went,
    )
