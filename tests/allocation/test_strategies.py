"""What each built-in strategy does, how strategies are found, and how wrong options are answered."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator, OptionError
from coba_rl.allocation.solvers import SOLVERS, dynamic_programming
from coba_rl.allocation.strategies import BetaStrategy, make_strategy
from coba_rl.allocation.strategies.coba import CobaPaper, ExploreExploit
from coba_rl.allocation.strategies.static import StaticExploit, StaticExplore
from coba_rl.allocation.value import coba_value

RATES = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])


def plan(
    name: str, rates: np.ndarray, total: int, bounds: tuple[int, int] = (2, 128), **options: Any
) -> list[int]:
    return make_strategy(name, **options).plan(np.asarray(rates, dtype=float), total, *bounds).tolist()


# The rules


def test_uniform_gives_everyone_the_same() -> None:
    assert plan("uniform", RATES, 7 * 16) == [16] * 7
    assert plan("uniform", RATES, 7 * 16 + 3) == [17] * 3 + [16] * 4


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_coba_paper_maximises_equation_3(solver: str) -> None:
    rates, low, high, total = np.array([0.1, 0.4, 0.6, 0.9]), 2, 12, 26
    strategy = make_strategy("coba-paper", solver=solver, tau=2.0)
    strategy.capability.update(0.7)
    value_PB = coba_value(np.arange(low, high + 1)[None], rates[:, None], 7.3, 3.7, 2.0)
    assert (
        strategy.plan(rates, total, low, high).tolist() == dynamic_programming(value_PB, total, low).tolist()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("knapsack", lambda n, p: (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2),
        ("variance", lambda n, p: -p * (1 - p) / n),
    ],
)
def test_knapsack_and_variance_maximise_their_values(name: str, value: Callable) -> None:
    rates, low, high = np.array([0.08, 0.25, 0.5, 0.85]), 2, 12
    value_PB = value(np.arange(low, high + 1)[None], rates[:, None])
    for total in (8, 17, 26, 40, 48):
        assert plan(name, rates, total, (low, high)) == dynamic_programming(value_PB, total, low).tolist()


def test_coba_moves_from_nearly_solved_to_hard_prompts_as_failure_falls() -> None:
    """The paper's order: exploit while most fails, explore once most passes."""
    favourite = []
    for failure in (0.9, 0.5, 0.1):
        strategy = make_strategy("coba-paper")
        strategy.capability.update(failure)
        favourite.append(float(RATES[np.argmax(strategy.plan(RATES, 7 * 16, 2, 128))]))
    assert favourite == sorted(favourite, reverse=True)
    assert favourite[0] > 0.5 > favourite[-1]


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_explore_exploit_is_the_mapping_reversed(first: float, second: float) -> None:
    def alpha(cls: type[CobaPaper], failure: float) -> float:
        strategy = cls(window=1)
        strategy.capability.update(failure)
        return strategy.shape()[0]

    low, high = sorted((first, second))
    assert alpha(CobaPaper, low) <= alpha(CobaPaper, high)
    assert alpha(ExploreExploit, low) >= alpha(ExploreExploit, high)
    # α_min + λF̃ and α_min + λ(1 − F̃) are symmetric about the middle of [1, 10].
    assert alpha(CobaPaper, low) + alpha(ExploreExploit, low) == pytest.approx(11.0)


def test_static_preferences_do_not_move() -> None:
    for cls, shape in ((StaticExploit, (10.5, 1.5)), (StaticExplore, (1.5, 10.5))):
        strategy = cls()
        for failure in (1.0, 0.5, 0.0):
            strategy.capability.update(failure)
            assert strategy.shape() == shape
    rates = np.array([0.15, 0.85])
    explore, exploit = plan("static-explore", rates, 40), plan("static-exploit", rates, 40)
    assert explore[0] > explore[1]
    assert exploit[0] < exploit[1]


def test_linear_decay_goes_through_ten_equal_stages() -> None:
    allocator = BudgetAllocator("linear-decay")
    allocator.begin(40)
    shapes = []
    for _ in range(43):
        allocator.allocate(["a", "b"], total=8)
        shapes.append((allocator.metrics()["coba/alpha"], allocator.metrics()["coba/beta"]))
    assert shapes[:40] == [(float(alpha), 11.0 - alpha) for alpha in range(10, 0, -1) for _ in range(4)]
    assert shapes[40:] == [(1.0, 10.0)] * 3  # a run longer than planned stays in the last stage


def test_linear_decay_needs_to_know_the_number_of_allocations() -> None:
    allocator = BudgetAllocator("linear-decay")
    with pytest.raises(OptionError, match=r"call allocator\.begin"):
        allocator.allocate(["a"], total=4)
    allocator.begin(3)
    assert allocator.allocate(["a"], total=4).total == 4


def test_a_resumed_training_of_another_length_has_its_own_stages() -> None:
    first, resumed = BudgetAllocator("linear-decay"), BudgetAllocator("linear-decay")
    first.begin(10)
    for _ in range(5):
        first.allocate(["a"], total=4)
    resumed.load_state_dict(first.state_dict())
    resumed.begin(20)
    resumed.allocate(["a"], total=4)
    assert resumed.metrics()["coba/alpha"] == 8.0  # the sixth of 20, not of 10


@pytest.mark.parametrize("wrong", [0, -3, 2.5, "10", None, math.nan], ids=repr)
@pytest.mark.parametrize("name", ["linear-decay", "uniform"])
def test_a_training_without_allocations_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(OptionError, match="expected the allocations of the whole training, at least 1"):
        BudgetAllocator(name).begin(wrong)


def test_knapsack_gives_solved_prompts_the_minimum_and_leftovers_to_failed_ones() -> None:
    rates = np.array([1.0, 0.0, 0.5, 0.0])
    assert plan("knapsack", rates, 8 + 5, (2, 10)) == [2, 2, 7, 2]  # everything to the one that can teach
    assert plan("knapsack", rates, 8 + 8 + 5, (2, 10)) == [
        2,
        5,
        10,
        4,
    ]  # it is full: the rest to p = 0, evenly
    assert plan("knapsack", rates, 8 + 8 + 16 + 3, (2, 10)) == [5, 10, 10, 10]  # these are full too
    assert plan("knapsack", np.array([1.0, 1.0, 0.0]), 6 + 5, (2, 10)) == [2, 2, 7]


def test_the_first_epoch_of_knapsack_is_uniform() -> None:
    allocator = BudgetAllocator("knapsack")
    assert allocator.allocate(range(4), total=64).budgets.tolist() == [16] * 4


def test_variance_prefers_one_half_and_shares_by_the_square_root() -> None:
    rates = np.array([0.5, 0.1])
    budgets = plan("variance", rates, 400, (1, 1000))
    assert budgets[0] / budgets[1] == pytest.approx(math.sqrt(0.25 / 0.09), rel=0.02)


def test_gvm_formula() -> None:
    rates = np.array([0.05, 0.2, 0.5, 1.0])
    weights = 1.0 / np.sqrt(rates + 1e-3 / rates)  # damping 1e-3, exponent 2
    budgets = np.array(plan("gvm", rates, 4000, (1, 4000)))
    assert np.abs(budgets - 4000 * weights / weights.sum()).max() < 1.0
    other = 1.0 / np.sqrt(rates + 0.02 / rates**2)
    budgets = np.array(plan("gvm", rates, 4000, (1, 4000), damping=0.02, damping_exponent=3.0))
    assert np.abs(budgets - 4000 * other / other.sum()).max() < 1.0


def test_gvm_gives_a_prompt_that_never_passes_the_minimum() -> None:
    assert plan("gvm", np.array([0.0, 0.5]), 20) == [2, 18]


@pytest.mark.parametrize(
    "name", sorted(name for name, cls in STRATEGIES.items() if issubclass(cls, BetaStrategy))
)
def test_a_fixed_tau_is_used(name: str) -> None:
    allocator = BudgetAllocator(name, tau=0.25)
    allocator.begin(5)
    allocator.observe(["a"] * 4 + ["b"] * 4, [1, 0, 0, 0, 1, 1, 0, 0])
    allocator.allocate(["a", "b"], total=16)
    assert allocator.metrics()["coba/tau"] == 0.25


# Prompts never seen


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"coba", "coba-release"}))
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_unseen_prompts_get_the_even_share_wherever_they_stand(
    name: str, unseen: list[bool], data: st.DataObject
) -> None:
    size = len(unseen)
    total = data.draw(st.integers(2 * size, 20 * size))
    rates = np.where(unseen, np.nan, np.linspace(0.1, 0.9, size))

    def allocate(p_P: np.ndarray) -> np.ndarray:
        strategy = make_strategy(name)
        strategy.begin(9)
        return strategy.allocate(p_P, total, 2, 20)

    budgets = allocate(rates)
    assert budgets.sum() == total
    assert ((budgets >= 2) & (budgets <= 20)).all()
    assert budgets[unseen].max(initial=2) - budgets[unseen].min(initial=20) <= 1
    assert abs(budgets[unseen].sum() - total * sum(unseen) / size) < size
    assert np.abs(allocate(rates[::-1])[::-1] - budgets).max() <= 1


def test_drift_expects_of_unseen_prompts_the_prior_and_then_the_overall_success_rate() -> None:
    allocator = BudgetAllocator("coba", estimator={"name": "drift", "prior": (1.0, 3.0)})
    assert allocator.allocate(["a"], total=4).pass_rates.tolist() == [0.25]
    allocator.observe(["a"] * 4 + ["b"] * 8, [1, 1, 0, 0, *[1] * 8])
    assert allocator.allocate(["new"], total=4).pass_rates[0] == pytest.approx(0.75, abs=1e-3)


EXTREME_RATES = [5e-324, 1e-310, 1e-300, 1e-160, 1e-17, 1e-12, 1.0 - 1e-16, 1.0, 0.0, 0.3]


@pytest.mark.parametrize("high", [8, 128, 100_000])
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_no_pass_rate_is_too_small_or_too_large(name: str, high: int) -> None:
    batches = [np.full(5, rate) for rate in EXTREME_RATES] + [np.array(EXTREME_RATES)]
    for p_P in batches:
        for total in (2 * len(p_P) + 1, 5 * len(p_P) + 3, 8 * len(p_P)):
            allocator = BudgetAllocator(name, bounds=(2, high))
            allocator.begin(5)
            with np.errstate(all="raise"):
                budgets = allocator.allocate(list(range(len(p_P))), total, p_P).budgets
            assert budgets.sum() == total
            assert ((budgets >= 2) & (budgets <= high)).all()
            assert all(np.isfinite(list(allocator.metrics().values())))


def test_gvm_tells_the_smallest_pass_rates_apart() -> None:
    rates = np.array([1e-320, 4e-320])  # n ∝ √p where damping/p outweighs p
    assert plan("gvm", rates, 30) == [10, 20]
    assert plan("gvm", rates, 30, damping=0.0) == [20, 10]  # n ∝ 1/√p
