"""`BudgetAllocator`: what it takes, what it refuses and what it reports."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from coba_rl import (
    STRATEGIES,
    BudgetAllocator,
    CobaError,
    InfeasibleBudgetError,
    OptionError,
    Strategy,
    UnknownStrategyError,
)
from coba_rl.allocation.strategies import make_strategy

NAN = math.nan


def make(name: str = "coba-paper", **options: Any) -> BudgetAllocator:
    allocator = BudgetAllocator(name, **options)
    allocator.begin(10)
    return allocator


def rate(allocator: BudgetAllocator, prompt_id: str) -> float:
    return float(allocator.strategy.pass_rates([prompt_id])[0])


# What comes back


def test_the_allocation_in_its_three_forms() -> None:
    allocator = make("uniform")
    allocation = allocator.allocate(["a", "b", "c"], total=8)
    assert allocation.budgets.dtype == np.int64
    assert allocation.budgets.tolist() == [3, 3, 2]
    assert allocation.total == 8
    assert allocation.as_dict() == {"a": 3, "b": 3, "c": 2}
    assert allocation.repeat_index.dtype == np.int64
    assert allocation.repeat_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert np.isnan(allocation.pass_rates).all()


def test_ids_may_come_from_any_iterable_of_text_and_integers() -> None:
    expected = make("uniform").allocate([0, 1, 2], total=8).as_dict()
    forms: list[Any] = [np.arange(3), range(3), iter([0, 1, 2]), (np.int32(i) for i in range(3))]
    total: Any = np.int64(8)
    for ids in forms:
        found = make("uniform").allocate(ids, total).as_dict()
        assert found == expected
        assert all(type(prompt_id) is int for prompt_id in found)
    assert make("uniform").allocate(np.array(["x", "y"]), total=4).as_dict() == {"x": 2, "y": 2}


def test_text_and_integer_ids_are_different_prompts() -> None:
    allocator = make()
    allocator.observe([1, 1], [1.0, 0.0])
    assert math.isnan(rate(allocator, "1"))


@pytest.mark.parametrize("bad", [True, 1.0, None, b"a", ("a",), np.float64(2), np.bool_(True)], ids=repr)
def test_other_ids_are_refused(bad: Any) -> None:
    for call in (
        lambda: make().allocate(["a", bad], total=8),
        lambda: make().observe(["a", bad], [1.0, 0.0]),
    ):
        with pytest.raises(TypeError, match="expected str or int"):
            call()


def test_one_text_instead_of_a_list_of_ids_is_refused() -> None:
    with pytest.raises(TypeError, match="prompt_ids='abc' is one text: expected a list"):
        make().allocate("abc", total=12)


@pytest.mark.parametrize("total", [8.0, 8.5, "8", None, NAN, np.float64(8)], ids=repr)
def test_a_total_that_is_no_whole_number_is_refused(total: Any) -> None:
    with pytest.raises(TypeError, match="expected a whole number of rollouts"):
        make().allocate(["a", "b"], total)


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"coba-release"}))
def test_an_impossible_total_names_the_numbers_and_changes_nothing(name: str) -> None:
    allocator = make(name, bounds=(2, 8))
    allocator.allocate(["a"], total=5)
    before = allocator.state_dict()
    for total, advice in ((5, "raise the total to 6"), (25, "lower the total to 24"), (0, "6"), (-3, "6")):
        with pytest.raises(
            InfeasibleBudgetError, match=f"total={total} .*3 prompts.*\\(2, 8\\).*{advice}"
        ) as caught:
            allocator.allocate(["a", "b", "c"], total)
        assert isinstance(caught.value, ValueError)
    assert allocator.state_dict() == before


def test_an_empty_batch_takes_an_empty_total_only() -> None:
    allocation = make().allocate([], total=0)
    assert (allocation.total, allocation.as_dict(), allocation.repeat_index.tolist()) == (0, {}, [])
    with pytest.raises(InfeasibleBudgetError, match="0 prompts"):
        make().allocate([], total=4)


def test_rows_with_one_id_get_a_budget_each_and_share_one_history() -> None:
    allocator = make("knapsack", bounds=(1, 16))
    allocator.observe(["a"] * 4 + ["b"] * 4, [1, 1, 0, 0, 1, 0, 0, 0])
    allocation = allocator.allocate(["a", "b", "a"], total=24)
    assert allocation.budgets.shape == (3,)
    assert abs(allocation.budgets[0] - allocation.budgets[2]) <= 1
    assert allocation.as_dict() == {
        "a": int(allocation.budgets[0] + allocation.budgets[2]),
        "b": int(allocation.budgets[1]),
    }
    allocator.observe(["a", "b", "a", "a", "b"], [1, 0, 1, 0, 0])  # one visit of a, whatever the order
    assert rate(allocator, "a") == pytest.approx(2 / 3)
    assert rate(allocator, "b") == 0.0


def test_known_pass_rates_can_be_given() -> None:
    allocator = make("knapsack", bounds=(2, 16))
    allocator.observe(["a"] * 4, [1.0] * 4)
    allocation = allocator.allocate(["a", "b", "c"], total=24, pass_rates=np.array([0.5, NAN, 1.0]))
    assert allocation.pass_rates[[0, 2]].tolist() == [0.5, 1.0]
    assert allocation.budgets.tolist() == [14, 8, 2]
    assert rate(allocator, "a") == 1.0  # used, not remembered
    for wrong in ([0.5], [0.5, 0.5, 1.5], [0.5, -0.1, 0.5], [[0.5, 0.5, 0.5]]):
        with pytest.raises(ValueError, match="expected one number in"):
            allocator.allocate(["a", "b", "c"], total=24, pass_rates=np.array(wrong))


# What it learns from


def test_success_is_graded_unless_a_threshold_is_set() -> None:
    scores = [0.9, 0.4, 0.05, 0.45]
    graded, thresholded = make(), make(success_threshold=0.4)
    for allocator in (graded, thresholded):
        allocator.observe(["a"] * 4, scores)
    assert rate(graded, "a") == pytest.approx(0.45)
    assert rate(thresholded, "a") == 0.75


def test_a_threshold_takes_rewards_of_any_scale() -> None:
    allocator = make(success_threshold=0.0)
    allocator.observe(["a"] * 5, [-1.0, 0.0, 7.5, math.inf, -math.inf])
    assert rate(allocator, "a") == pytest.approx(3 / 5)


ROUNDED: list[tuple[Any, float]] = [
    (np.float32(1) + np.finfo(np.float32).eps, 1.0),
    (1.0000001, 1.0),
    (-1e-8, 0.0),
    (np.array([0.1] * 10, np.float32).cumsum(dtype=np.float32)[-1], 1.0),
    (np.float16(1) + np.finfo(np.float16).eps, 1.0),
]


@pytest.mark.parametrize(("value", "meant"), ROUNDED)
def test_a_success_beyond_0_or_1_by_rounding_is_0_or_1(value: Any, meant: float) -> None:
    allocator = make("knapsack")
    allocator.observe(["a"], np.array([value]))
    assert rate(allocator, "a") == meant
    given = allocator.allocate(["a"], total=4, pass_rates=np.array([value]))
    assert given.pass_rates.tolist() == [meant]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("threshold", [0.9, 0.1, -0.3, 1e-4, 700.1])
def test_a_threshold_is_met_by_itself_in_any_precision(kind: Any, threshold: float) -> None:
    allocator = make(success_threshold=threshold)
    met = np.array([threshold], dtype=kind)
    assert allocator.success(met).tolist() == [1.0]
    below = np.array([threshold - 0.01 * abs(threshold)], dtype=kind)
    assert allocator.success(below).tolist() == [0.0]


def test_a_tiny_threshold_means_anything_above_zero() -> None:
    assert make(success_threshold=1e-7).success([0.0, -1e-9, 2e-7]).tolist() == [0.0, 0.0, 1.0]


def test_the_threshold_of_float32_is_met_by_a_list_too() -> None:
    """Hosts hand on double precision numbers that once were float32."""
    reward = float(np.float32(0.9))
    assert reward < 0.9
    assert make(success_threshold=0.9).success([reward, 0.899, None]).tolist()[:2] == [1.0, 0.0]


@pytest.mark.parametrize("bad", [1.5, 1.00001, -0.1, -1e-5, math.inf, -math.inf])
def test_a_graded_success_outside_0_to_1_is_refused(bad: float) -> None:
    allocator = make()
    with pytest.raises(ValueError, match=rf"success {bad!r} lies outside \[0, 1\].*success_threshold"):
        allocator.observe(["a", "a"], [0.5, bad])
    assert not allocator.strategy.seen(["a"])[0]


def test_success_may_be_bool_integer_or_an_array() -> None:
    for successes in ([True, False], [1, 0], np.array([1, 0]), np.array([True, False]), (1.0, 0.0)):
        allocator = make()
        allocator.observe(["a", "a"], successes)
        assert rate(allocator, "a") == 0.5


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match="2 prompt ids but 3 successes"):
        make().observe(["a", "b"], [1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match=r"shape \(2, 1\): expected one number a rollout"):
        make().observe(["a", "b"], np.array([[1.0], [0.0]]))


@pytest.mark.parametrize("missing", [None, NAN])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_none_and_nan_are_neither_pass_nor_attempt(missing: float | None, threshold: float | None) -> None:
    allocator = make(success_threshold=threshold)
    allocator.observe(["a", "a", "a", "b"], [1.0, missing, 0.0, missing])
    assert rate(allocator, "a") == 0.5
    assert not allocator.strategy.seen(["b"])[0]
    assert allocator.metrics()["coba/unjudged_rollouts"] == 2.0
    assert allocator.metrics()["coba/success_per_prompt"] == 0.5


def test_a_step_without_any_judged_rollout_teaches_nothing() -> None:
    allocator = make("coba")
    allocator.observe(["a"] * 4, [1.0, 0.0, 0.0, 0.0])
    before = allocator.state_dict()
    for ids, successes in ((["a", "b"], [None, NAN]), ([], [])):
        allocator.observe(ids, successes)
        assert allocator.state_dict()["strategy_state"] == before["strategy_state"]
        assert allocator.metrics()["coba/unjudged_rollouts"] == len(ids)


def test_several_observations_between_two_allocations_are_several_visits() -> None:
    allocator = make("coba-paper", estimator={"name": "window", "visits": 2}, window=3)
    allocator.allocate(["a", "b"], total=8)
    allocator.observe(["a"] * 4, [1, 1, 1, 1])
    allocator.observe(["b"] * 4, [0, 0, 0, 0])
    allocator.observe(["a"] * 4, [0, 0, 1, 1])
    assert rate(allocator, "a") == 0.75
    assert rate(allocator, "b") == 0.0
    assert allocator.strategy.capability.failure_rate == pytest.approx((0.0 + 1.0 + 0.5) / 3)


def test_observing_comes_before_allocating_too() -> None:
    """Pass rates known from earlier runs are a first `observe`."""
    allocator = make("knapsack")
    allocator.observe(["easy"] * 4 + ["mid"] * 4, [1] * 4 + [1, 0, 0, 0])
    assert allocator.allocate(["easy", "mid"], total=20).as_dict() == {"easy": 2, "mid": 18}


def test_the_order_of_the_rollouts_does_not_matter() -> None:
    first, second = make("coba"), make("coba")
    first.observe(["a", "a", "b", "b"], [1.0, 0.0, 0.25, 0.5])
    second.observe(["b", "a", "b", "a"], [0.5, 0.0, 0.25, 1.0])
    assert first.strategy.pass_rates(["a", "b"]).tolist() == second.strategy.pass_rates(["a", "b"]).tolist()


# How it is made


@pytest.mark.parametrize("bounds", [(0, 8), (8, 2), (2,), (2, 4, 8), (2.0, 8), 4, None, ("2", "8")], ids=repr)
def test_wrong_bounds_are_refused(bounds: Any) -> None:
    with pytest.raises(OptionError, match="bounds="):
        make(bounds=bounds)


def test_bounds_may_be_numpy_integers_and_a_list() -> None:
    assert make(bounds=[np.int64(2), np.int32(8)]).bounds == (2, 8)


@pytest.mark.parametrize("threshold", [NAN, math.inf, "0.5", True, [0.5]], ids=repr)
def test_a_wrong_threshold_is_refused(threshold: Any) -> None:
    with pytest.raises(OptionError, match=r"success_threshold=.*expected a finite number or None"):
        make(success_threshold=threshold)


@pytest.mark.parametrize("threshold", [np.float32(0.5), np.int64(1), 1], ids=repr)
def test_numpy_numbers_are_thresholds_and_can_be_saved(threshold: Any) -> None:
    state = make(success_threshold=threshold).state_dict()
    assert json.loads(json.dumps(state))["success_threshold"] == float(threshold)


def test_a_strategy_object_is_used_as_it_is() -> None:
    strategy = make_strategy("coba", kappa=7.0)
    assert BudgetAllocator(strategy).strategy is strategy
    with pytest.raises(OptionError, match="options \\['kappa'\\] were given beside a Strategy object"):
        BudgetAllocator(strategy, kappa=9.0)


@pytest.mark.parametrize("wrong", [STRATEGIES["coba"], None, 3], ids=repr)
def test_something_else_than_a_name_or_an_object_is_refused(wrong: Any) -> None:
    with pytest.raises(UnknownStrategyError, match="an instance"):
        BudgetAllocator(wrong)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([2, 2], "2 budgets with sum 4"),
        ([9], "1 budgets with sum 9"),
        ([10, -1], "a budget of 10"),
        ([8, 1], "a budget of 1"),
        ([4.5, 4.5], "a budget of 4.5"),
        ([NAN, 9.0], "2 budgets with sum nan"),
        ([[4, 5]], r"\[\[4, 5\]\]"),
        (["4", "5"], r"\['4', '5'\]"),
        (None, "None"),
    ],
)
def test_budgets_that_break_a_promise_are_refused_whoever_made_them(given: Any, problem: str) -> None:
    class Foreign(Strategy):
        name = "foreign"

        def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> Any:
            return given

        def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
            return self.allocate(p_P, total, low, high)

    allocator = BudgetAllocator(Foreign(), bounds=(2, 8))
    expected = (
        f"strategy Foreign returned {problem}: expected 2 budgets with sum 9, whole numbers from 2 to 8"
    )
    with pytest.raises(CobaError, match=expected):
        allocator.allocate(["a", "b"], total=9)
    assert allocator.state_dict()["step"] == 0


def test_whole_numbers_of_another_type_are_budgets() -> None:
    class Rounding(Strategy):
        name = "rounding"

        def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> Any:
            return np.round(np.full(len(p_P), total / len(p_P)))

    allocator = BudgetAllocator(Rounding())
    allocator.observe(["a", "b"], [1.0, 0.0])
    budgets = allocator.allocate(["a", "b"], total=8).budgets
    assert (budgets.dtype, budgets.tolist()) == (np.int64, [4, 4])
