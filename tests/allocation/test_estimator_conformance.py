"""The shipped suite of estimators, applied to every built-in one, and shown to catch broken ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from coba_rl import BudgetAllocator, OptionError, Strategy
from coba_rl.allocation.estimators import (
    ESTIMATORS,
    PassRateEstimator,
    Visits,
    describe_estimator,
    make_estimator,
)
from coba_rl.allocation.estimators.base import COUNT
from coba_rl.allocation.estimators.posterior import PosteriorEstimator
from coba_rl.allocation.prompt_table import Column
from coba_rl.allocation.strategies import make_strategy
from coba_rl.testing import EstimatorConformance


class _BuiltIn(EstimatorConformance):
    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def make(self) -> PassRateEstimator:
        return make_estimator(self.name, **self.options)


class TestWindow(_BuiltIn):
    name = "window"


class TestWindowOfThree(_BuiltIn):
    name = "window"
    options: ClassVar[dict[str, Any]] = {"visits": 3}


class TestPosterior(_BuiltIn):
    name = "posterior"


class TestPosteriorWithEveryOptionMoved(_BuiltIn):
    name = "posterior"
    options: ClassVar[dict[str, Any]] = {"prior": (1.0, 2.0), "decay": 1.0}


class TestDrift(_BuiltIn):
    name = "drift"


class TestAbility(_BuiltIn):
    name = "ability"


class TestAbilityWithLuck(_BuiltIn):
    name = "ability"
    options: ClassVar[dict[str, Any]] = {"guess_rate": 0.25}


def test_every_built_in_is_tested_here() -> None:
    tested = {getattr(cls, "name", None) for cls in _BuiltIn.__subclasses__()}
    assert tested == set(ESTIMATORS)


@dataclass(eq=False, kw_only=True)
class Mean(PassRateEstimator):
    """One's own: the share of all rollouts so far."""

    halves: float = 0.0

    def columns(self) -> dict[str, Column]:
        return {"successes": COUNT, "attempts": COUNT}

    def estimate(self, prompt_ids: Sequence[Any]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        rates = np.full(len(rows), np.nan)
        kept = rows[rows >= 0]
        passed, tried = (self.table[name][kept] + self.halves for name in ("successes", "attempts"))
        rates[rows >= 0] = passed / (tried + self.halves)
        return rates

    def update(self, visits: Visits) -> None:
        rows = self.table.rows(visits.prompt_ids, create=True)
        self.table["successes"][rows] += visits.successes_P
        self.table["attempts"][rows] += visits.attempts_P


class TestOnesOwn(EstimatorConformance):
    def make(self) -> PassRateEstimator:
        return Mean(halves=0.5)


class _Percent(Mean):
    def estimate(self, prompt_ids: Sequence[Any]) -> np.ndarray:
        return 100.0 * super().estimate(prompt_ids)


class _MakesSeen(Mean):
    def estimate(self, prompt_ids: Sequence[Any]) -> np.ndarray:
        self.table.rows(prompt_ids, create=True)
        return np.full(len(prompt_ids), 0.5)


class _Reversed(Mean):
    def estimate(self, prompt_ids: Sequence[Any]) -> np.ndarray:
        return 1.0 - super().estimate(prompt_ids)


class _Relative(Mean):
    def estimate(self, prompt_ids: Sequence[Any]) -> np.ndarray:
        rates = super().estimate(prompt_ids)
        return rates / max(np.nanmax(rates, initial=0.0), 1e-3)


class _FirstCounts(Mean):
    def update(self, visits: Visits) -> None:
        super().update(Visits(visits.prompt_ids, visits.successes_P[:1] * 0.5, visits.attempts_P))


class _Narrow(Mean):
    def interval(self, prompt_ids: Sequence[Any], level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(prompt_ids), 0.4), np.full(len(prompt_ids), 0.6)


class _Forgetful(Mean):
    """Scales by a counter that it does not save."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = 0

    def update(self, visits: Visits) -> None:
        self.steps += 1
        super().update(Visits(visits.prompt_ids, visits.successes_P / self.steps, visits.attempts_P))


class _LiveState(Mean):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.log: list[float] = []

    def update(self, visits: Visits) -> None:
        self.log.append(visits.success_rate)
        super().update(visits)

    def state_dict(self) -> dict[str, Any]:
        return {"log": self.log}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log = list(state["log"])


@dataclass(eq=False, kw_only=True)
class _Unsayable(Mean):
    source: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.source = object()


def _nested() -> type[PassRateEstimator]:
    class Nested(Mean): ...

    return Nested


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Percent, "test_estimates_are_probabilities"),
        (_MakesSeen, "test_what_was_visited_is_seen_and_has_an_estimate"),
        (_Reversed, "test_a_prompt_that_passes_is_believed_above_one_that_fails"),
        (_Relative, "test_estimates_do_not_depend_on_what_is_asked_with_them"),
        (_FirstCounts, "test_the_order_of_prompts_within_a_step_does_not_matter"),
        (_Narrow, "test_an_interval_holds_the_estimate"),
        (_Forgetful, "test_a_restart_goes_on_bit_for_bit"),
        (_LiveState, "test_a_saved_state_is_a_snapshot"),
        (_LiveState, "test_nothing_runs_away"),
        (_LiveState, "test_an_estimate_given_outcomes_is_that_after_them_and_leaves_no_trace"),
        (_Forgetful, "test_an_estimate_given_outcomes_is_that_after_them_and_leaves_no_trace"),
        (_Unsayable, "test_options_are_json_and_rebuild_the_estimator"),
        (_nested(), "test_options_are_json_and_rebuild_the_estimator"),
    ],
)
def test_the_suite_catches(broken: type[PassRateEstimator], test: str) -> None:
    class TestBroken(EstimatorConformance):
        def make(self) -> PassRateEstimator:
            return broken()

    with pytest.raises((AssertionError, OptionError, TypeError)):
        getattr(TestBroken(), test)()


# In a strategy

OWN = f"{__name__}:Mean"


@pytest.mark.parametrize(
    "given",
    [
        {"name": "posterior", "prior": [1, 3]},
        {"name": OWN, "halves": 2.0},
        OWN,
        "ability",
        lambda: PosteriorEstimator(decay=0.9),
        lambda: Mean(halves=1.0),
    ],
    ids=str,
)
def test_a_strategy_is_rebuilt_from_what_it_says_of_its_estimator(given: Any) -> None:
    strategy = make_strategy("coba", estimator=given() if callable(given) else given)
    again = make_strategy("coba", **strategy.options())
    assert again.options() == strategy.options()
    assert type(again._estimator) is type(strategy._estimator)


def test_what_is_said_of_an_estimator_tells_every_option() -> None:
    assert describe_estimator(make_estimator("drift")) == {"name": "drift", "prior": [0.5, 0.5], "decay": 0.5}
    assert describe_estimator(Mean(halves=2.0)) == {"name": OWN, "halves": 2.0}


def test_an_estimator_serves_one_strategy() -> None:
    estimator = PosteriorEstimator(prior=(1.0, 3.0))
    with pytest.raises(OptionError, match="Unknown solver"):
        BudgetAllocator("knapsack", estimator=estimator, solver="fats")  # has not taken it
    allocator = BudgetAllocator("knapsack", estimator=estimator)
    assert allocator.allocate(["a"], total=4).pass_rates.tolist() == [0.25]
    with pytest.raises(OptionError, match="serves another strategy: make one for each"):
        BudgetAllocator("coba", estimator=estimator)


def test_options_beside_an_estimator_object_are_refused() -> None:
    with pytest.raises(
        OptionError, match=r"options \['decay'\] were given beside a PassRateEstimator object"
    ):
        make_estimator(PosteriorEstimator(), decay=0.1)


@pytest.mark.parametrize("estimator", ["posterior", OWN, {"name": OWN, "halves": 1.0}])
def test_state_goes_through_the_allocator(estimator: Any) -> None:
    first, resumed = (BudgetAllocator("coba", estimator=estimator) for _ in range(2))
    first.observe(["a", "a", "b"], [1.0, 0.0, 1.0])
    resumed.load_state_dict(first.state_dict())
    strategies: list[Strategy] = [first.strategy, resumed.strategy]
    rates = [strategy.pass_rates(["a", "b", "c"]) for strategy in strategies]
    assert np.array_equal(*rates, equal_nan=True)
