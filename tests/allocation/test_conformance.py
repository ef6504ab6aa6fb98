"""The shipped suite of strategies, applied to every built-in one, and shown to catch broken ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from coba_rl import STRATEGIES, BudgetAllocator, GainStrategy, Strategy
from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies import make_strategy
from coba_rl.allocation.value import VarianceGains
from coba_rl.errors import CobaError, InfeasibleBudgetError
from coba_rl.testing import StrategyConformance


class _BuiltIn(StrategyConformance):
    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def make(self) -> Strategy:
        return make_strategy(self.name, **self.options)


class TestCoba(_BuiltIn):
    name = "coba"


class TestCobaWithEveryOptionMoved(_BuiltIn):
    name = "coba"
    options: ClassVar[dict[str, Any]] = {
        "window": 2, "estimator": {"name": "posterior", "prior": (1.0, 2.0), "decay": 0.9}, "kappa": 7.0,
        "preferred_min": 0.6, "preferred_max": 0.1, "tau_per_rollout": 0.02, "solver": "heap",
    }  # fmt: skip


class TestCobaPaperWithEveryOptionMoved(_BuiltIn):
    name = "coba-paper"
    options: ClassVar[dict[str, Any]] = {
        "window": 2, "kappa": 7.0, "gamma": 40.0, "transform_below": 0.0, "alpha_min": 1.5, "alpha_max": 6.0, "alpha_slope": 9.0,
        "tau": 0.3,
    }  # fmt: skip


class TestCobaPaper(_BuiltIn):
    name = "coba-paper"


class TestCobaPaperByHeap(_BuiltIn):
    name = "coba-paper"
    options: ClassVar[dict[str, Any]] = {
        "solver": "heap",
        "estimator": {"name": "window", "visits": 3},
        "tau": 0.2,
    }


class TestCobaPaperByDynamicProgramming(_BuiltIn):
    name = "coba-paper"
    options: ClassVar[dict[str, Any]] = {"solver": "dynamic-programming"}


class TestCobaRelease(_BuiltIn):
    name = "coba-release"

    # The release hands out its fall-back row by row, from a remainder that shrinks on the way.
    test_equal_prompts_differ_by_at_most_one = None
    test_order_of_the_batch_moves_budgets_by_at_most_one = None
    # Prompts never seen count as p = 0.5, which shares the row-by-row fall-back with known ones.
    test_prompts_never_seen_share_evenly = None
    # A total below the minimum is split evenly instead of being refused.
    test_infeasible_totals_are_refused = None

    def test_only_the_lower_end_is_lenient(self) -> None:
        allocator = self.allocator()
        assert allocator.allocate(["a", "b", "c"], total=4).budgets.tolist() == [2, 1, 1]
        for total in (-1, 3 * self.bounds[1] + 1):
            with pytest.raises(InfeasibleBudgetError):
                allocator.allocate(["a", "b", "c"], total)


class TestCobaReleaseWithWindow(TestCobaRelease):
    options: ClassVar[dict[str, Any]] = {"window": 3, "kappa": 7.0}


class TestUniform(_BuiltIn):
    name = "uniform"


class TestKnapsack(_BuiltIn):
    name = "knapsack"


class TestKnapsackWithDrift(_BuiltIn):
    name = "knapsack"
    options: ClassVar[dict[str, Any]] = {"estimator": "drift"}


class TestStaticExploit(_BuiltIn):
    name = "static-exploit"


class TestStaticExplore(_BuiltIn):
    name = "static-explore"


class TestLinearDecay(_BuiltIn):
    name = "linear-decay"


class TestExploreExploit(_BuiltIn):
    name = "explore-exploit"


class TestVariance(_BuiltIn):
    name = "variance"


class TestGvm(_BuiltIn):
    name = "gvm"


def test_every_built_in_is_tested_here() -> None:
    tested = {
        cls.name
        for cls in globals().values()
        if isinstance(cls, type) and hasattr(cls, "make") and hasattr(cls, "name")
    }
    assert tested >= set(STRATEGIES)


@dataclass(eq=False, kw_only=True)
class _Broken(Strategy):
    name: ClassVar[str] = "broken"

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return even_split(total, len(p_P))


class _GreedyForTheFirst(_Broken):
    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        budgets = np.full(len(p_P), low)
        for i in range(len(p_P)):
            budgets[i] += min(high - low, total - budgets.sum())
        return budgets


class _OutOfBounds(_Broken):
    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        budgets = even_split(total, len(p_P))
        if len(budgets) > 1:
            budgets[0], budgets[-1] = budgets[0] + budgets[-1] - 1, 1
        return budgets


class _Forgetful(_Broken):
    """Rotates by a counter that it does not save."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = 0

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        self.steps += 1
        return np.roll(even_split(total, len(p_P)), self.steps)


class _Random(_Broken):
    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return np.random.default_rng().permutation(even_split(total, len(p_P)))


class _SharedBetweenObjects(_Forgetful):
    counts: ClassVar[list[int]] = []

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        self.counts.append(1)
        return np.roll(even_split(total, len(p_P)), len(self.counts))


class _LiveState(_Broken):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.log: list[float] = []

    def observe(self, visits: Visits) -> None:
        super().observe(visits)
        self.log.append(visits.success_rate)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log": self.log}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.log = list(state["log"])


class _InfiniteMetric(_Broken):
    def metrics(self) -> dict[str, float]:
        return {"tau": float("inf")}


class _ClipsItsInput(_Broken):
    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        np.clip(p_P, 0.01, 0.99, out=p_P)
        return even_split(total, len(p_P))


class _RatesAbove1(_Broken):
    def pass_rates(self, prompt_ids: Any) -> np.ndarray:
        return super().pass_rates(prompt_ids) + 0.5


class _Learns(_Broken):
    def pass_rates_given(self, prompt_ids: Any, visits: Visits) -> np.ndarray:
        self.observe(visits)
        return self.pass_rates(prompt_ids)


class _Lenient(_Broken):
    def check_feasible(self, num_prompts: int, total: int, low: int, high: int) -> None:
        pass


class _FavoursNew(_GreedyForTheFirst):
    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return self.plan(p_P, total, low, high)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_GreedyForTheFirst, "test_equal_prompts_differ_by_at_most_one"),
        (_GreedyForTheFirst, "test_order_of_the_batch_moves_budgets_by_at_most_one"),
        (_OutOfBounds, "test_budgets_sum_to_the_total_within_the_bounds"),
        (_OutOfBounds, "test_smallest_and_largest_total"),
        (_OutOfBounds, "test_equal_bounds"),
        (_OutOfBounds, "test_extreme_pass_rates"),
        (_Forgetful, "test_resume_continues_bit_for_bit"),
        (_Random, "test_same_history_same_budgets"),
        (_SharedBetweenObjects, "test_same_history_same_budgets"),
        (_LiveState, "test_saved_state_is_a_snapshot"),
        (_InfiniteMetric, "test_metrics_are_finite_numbers"),
        (_ClipsItsInput, "test_allocating_leaves_the_pass_rates_alone"),
        (_RatesAbove1, "test_pass_rates_are_probabilities"),
        (_OutOfBounds, "test_two_rounds_keep_total_bounds_and_pilot"),
        (_Learns, "test_a_look_at_outcomes_leaves_no_trace"),
        (_Lenient, "test_infeasible_totals_are_refused"),
        (_FavoursNew, "test_prompts_never_seen_share_evenly"),
    ],
)
def test_the_suite_catches(broken: type[Strategy], test: str) -> None:
    class TestBroken(StrategyConformance):
        def make(self) -> Strategy:
            return broken()

    with pytest.raises((AssertionError, CobaError)):  # some are found out by the allocator itself
        getattr(TestBroken(), test)()


@dataclass(eq=False, kw_only=True)
class _Mine(GainStrategy):
    """A third-party strategy as the documentation shows it."""

    name: ClassVar[str] = "mine"
    sharpness: float = 1.0

    def gains(self, p_P: np.ndarray, mean_budget: float) -> VarianceGains:
        return VarianceGains(p_P**self.sharpness)


class TestThirdParty(StrategyConformance):
    def make(self) -> Strategy:
        return _Mine(sharpness=2.0)


def test_a_strategy_of_ones_own_fits_the_allocator() -> None:
    assert BudgetAllocator(_Mine()).allocate(["a", "b"], total=8).budgets.tolist() == [4, 4]
