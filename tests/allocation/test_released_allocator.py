"""`coba-release` gives what the released allocator was seen to give, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coba_rl import BudgetAllocator

CASES = json.loads((Path(__file__).parents[1] / "golden" / "released_allocator.json").read_text())["cases"]


def make(config: dict[str, Any]) -> BudgetAllocator:
    bounds = (config["n_low"], config["n_up"])
    return BudgetAllocator(
        "coba-release", bounds=bounds, kappa=float(config["kappa"]), window=config["window"]
    )


def observe(allocator: BudgetAllocator, step: dict[str, Any]) -> None:
    groups = zip(step["budgets"], step["successes"], strict=True)
    successes = [float(i < passed) for budget, passed in groups for i in range(budget)]
    allocator.observe(np.repeat(step["ids"], step["budgets"]), successes)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_budgets_and_shapes_of_the_released_allocator(case: dict[str, Any]) -> None:
    allocator = make(case["config"])
    for number, step in enumerate(case["steps"]):
        allocation = allocator.allocate(step["ids"], step["total"])
        metrics = allocator.metrics()
        assert allocation.budgets.tolist() == step["budgets"], f"step {number}"
        assert metrics["coba/alpha"] == pytest.approx(step["alpha"], abs=1e-9)
        assert metrics["coba/beta"] == pytest.approx(step["beta"], abs=1e-9)
        if step["tau"] is not None:
            assert metrics["coba/tau"] == pytest.approx(step["tau"], abs=1e-9)
        observe(allocator, step)
    allocator.allocate(case["steps"][0]["ids"], case["steps"][0]["total"])
    final = (allocator.metrics()["coba/alpha"], allocator.metrics()["coba/beta"])
    assert final == pytest.approx((case["final"]["alpha"], case["final"]["beta"]), abs=1e-9)


def test_the_golden_file_is_the_whole_observation() -> None:
    assert len(CASES) == 9
    assert sum(len(case["steps"]) for case in CASES) == 88


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_resume_in_the_middle_changes_nothing(case: dict[str, Any]) -> None:
    allocator = make(case["config"])
    for step in case["steps"]:
        resumed = make(case["config"])
        resumed.load_state_dict(json.loads(json.dumps(allocator.state_dict())))
        allocator = resumed
        assert allocator.allocate(step["ids"], step["total"]).budgets.tolist() == step["budgets"]
        observe(allocator, step)


def test_the_release_favours_the_rows_that_come_first() -> None:
    """The order bias that keeps `coba-release` out of training: 717 rollouts for 60 equal prompts."""
    total = 717 + 60 * 2
    release, ours = BudgetAllocator("coba-release"), BudgetAllocator("coba")
    for allocator in (release, ours):
        allocator.observe(np.repeat(np.arange(60), 4), [0.0] * 240)
    biased = release.allocate(range(60), total).budgets - 2
    assert (biased[0], biased[-1]) == (16, 8)
    assert set((ours.allocate(range(60), total).budgets - 2).tolist()) == {11, 12}


def test_rollouts_that_the_release_would_leave_unspent_are_spent() -> None:
    allocator = BudgetAllocator("coba-release", bounds=(2, 20))
    allocator.observe(["a"] * 4 + ["b"] * 4, [1.0, 0.0] * 2 + [0.0] * 4)
    for total in range(4, 41):
        assert allocator.allocate(["a", "b"], total).total == total
