"""What `BudgetAllocator.metrics` reports: complete, finite, and equal to numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coba_rl import STRATEGIES, BudgetAllocator
from coba_rl.allocation.capability import transform
from coba_rl.allocation.strategies.coba import BetaStrategy, CobaPaper

NAN = math.nan


def make(name: str = "coba-paper", **options: Any) -> BudgetAllocator:
    allocator = BudgetAllocator(name, **options)
    allocator.begin(10)
    return allocator


BUDGET_METRICS = {
    "budget_min", "budget_mean", "budget_max", "share_at_min", "share_at_max", "effective_prompts", "unseen_prompts",
    "expected_dead_groups",
}  # fmt: skip
OUTCOME_METRICS = {
    "unjudged_rollouts", "success_per_prompt", "success_per_rollout", "dead_groups", "dead_groups_all_right",
    "dead_groups_all_wrong",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_metrics_are_complete_and_finite(name: str) -> None:
    allocator = make(name)
    for outcome in ([1, 1, 1, 1], [0, 0, 0, 0], [None, 1, NAN, 0]):
        allocator.allocate(["a", "b"], total=9)
        allocator.observe(["a", "a", "b", "b"], outcome)
    metrics = allocator.metrics()
    of_strategy = {"failure_rate"}
    if issubclass(STRATEGIES[name], BetaStrategy):
        of_strategy |= {"alpha", "beta", "tau"}
    if issubclass(STRATEGIES[name], CobaPaper):
        of_strategy |= {"transformed_failure_rate"}
    assert set(metrics) == {f"coba/{key}" for key in BUDGET_METRICS | OUTCOME_METRICS | of_strategy}
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())


def test_metrics_of_a_huge_total() -> None:
    allocator = make("uniform", bounds=(1, 10**12))
    allocator.allocate(["a", "b", "c", "d"], total=4 * 10**11)
    assert allocator.metrics()["coba/effective_prompts"] == 4.0


def test_metrics_of_a_worked_step() -> None:
    allocator = make("knapsack", bounds=(2, 8))
    allocator.observe(["hard"] * 4 + ["half"] * 4 + ["easy"] * 4, [0] * 4 + [1, 0] * 2 + [1] * 4)
    allocator.allocate(["hard", "half", "easy", "new"], total=16)
    metrics = allocator.metrics()
    assert (metrics["coba/budget_min"], metrics["coba/budget_mean"], metrics["coba/budget_max"]) == (
        2.0,
        4.0,
        8.0,
    )
    assert metrics["coba/share_at_min"] == 0.5  # hard and easy
    assert metrics["coba/share_at_max"] == 0.25
    assert metrics["coba/effective_prompts"] == pytest.approx(16**2 / (2**2 + 8**2 + 2**2 + 4**2))
    assert metrics["coba/unseen_prompts"] == 1.0
    assert metrics["coba/expected_dead_groups"] == pytest.approx((1 + 1 + 2 * 0.5**8) / 3)
    assert metrics["coba/failure_rate"] == 0.5
    assert metrics["coba/success_per_prompt"] == 0.5
    assert metrics["coba/dead_groups"] == pytest.approx(2 / 3)
    assert metrics["coba/dead_groups_all_right"] == pytest.approx(1 / 3)
    assert metrics["coba/dead_groups_all_wrong"] == pytest.approx(1 / 3)


def test_metrics_hold_until_the_next_call() -> None:
    allocator = make("coba-paper", window=1)
    assert allocator.metrics() == {}
    allocator.allocate(["a"], total=4)
    alpha = allocator.metrics()["coba/alpha"]
    allocator.observe(["a", "a"], [1.0, 1.0])
    assert allocator.metrics()["coba/alpha"] == alpha  # the one the budgets came from
    allocator.allocate(["a"], total=4)
    assert allocator.metrics()["coba/alpha"] < alpha


@pytest.mark.parametrize(("score", "right"), [(0.0, 0.0), (0.5, 0.0), (0.51, 1.0), (1.0, 1.0)])
def test_a_dead_group_is_either_right_or_wrong(score: float, right: float) -> None:
    allocator = make()
    allocator.observe(["a"] * 4, [score] * 4)
    metrics = allocator.metrics()
    assert metrics["coba/dead_groups_all_right"] == right
    assert metrics["coba/dead_groups_all_wrong"] == 1.0 - right


@pytest.mark.parametrize("name", ["coba-paper", "explore-exploit"])
def test_the_transformed_failure_rate_is_that_of_equation_6(name: str) -> None:
    allocator = make(name, gamma=7.0, transform_below=0.6)
    allocator.observe(["a"] * 4, [1, 1, 0, 1])
    allocator.allocate(["a"], total=4)
    metrics = allocator.metrics()
    assert metrics["coba/failure_rate"] == 0.25
    assert metrics["coba/transformed_failure_rate"] == transform(0.25, gamma=7.0, below=0.6)
