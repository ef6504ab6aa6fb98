"""Writes `host_outcomes.json`: recorded outcomes, and the budgets the plain allocator gives for them.

Each host's adapter must give the same budgets when it is fed the same outcomes. Run this file to write them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl import BudgetAllocator

FILE = Path(__file__).with_suffix(".json")
PROMPTS, MEAN, STEPS, POOL = 6, 5, 12, 16
BOUNDS = (2, 14)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("coba", {}),
    ("coba", {"estimator": {"name": "posterior", "prior": (1.0, 3.0)}, "window": 2}),
    ("coba-paper", {}),
    ("coba-release", {}),
    ("knapsack", {"estimator": "posterior"}),
    ("linear-decay", {}),
    ("uniform", {}),
]


def record_case(strategy: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Play a run in which prompt i succeeds with a chance that rises from step to step."""
    rng = np.random.default_rng(seed)
    allocator = BudgetAllocator(strategy, bounds=BOUNDS, **options)
    allocator.begin(STEPS)
    steps = []
    for step in range(STEPS):
        ids = [f"p{i}" for i in rng.choice(POOL, PROMPTS, replace=False)]
        allocation = allocator.allocate(ids, PROMPTS * MEAN)
        chance = [min(1.0, (int(i[1:]) + 0.4 * step) / POOL) for i in ids]
        successes = [
            [bool(rng.random() < p) for _ in range(budget)]
            for p, budget in zip(chance, allocation.budgets.tolist(), strict=True)
        ]
        flat = [float(s) for group in successes for s in group]
        allocator.observe([ids[i] for i in allocation.repeat_index], flat)
        steps.append(
            {
                "prompt_ids": ids,
                "budgets": allocation.budgets.tolist(),
                "successes": [[int(s) for s in group] for group in successes],
            }
        )
    # All options, so that another default does not make the record stale.
    every = {key: value for key, value in allocator.strategy.options().items() if value is not None}
    return {"strategy": strategy, "options": every, "steps": steps}


def record() -> dict[str, Any]:
    """All cases."""
    return {
        "format": "cases[].steps[]: prompt_ids in batch order, the budget of each, and the successes (0 or 1) of "
        "its rollouts, which are observed at the end of the step. options: all of the strategy's that are set.",
        "bounds": list(BOUNDS),
        "mean_budget": MEAN,
        "cases": [record_case(strategy, options, seed) for seed, (strategy, options) in enumerate(CASES)],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), separators=(",", ":")) + "\n", encoding="utf-8")
