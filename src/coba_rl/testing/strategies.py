"""What every strategy must satisfy."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator, Strategy
from coba_rl.allocation.estimators import Visits
from coba_rl.errors import InfeasibleBudgetError

_NUM_PROMPTS = 24
_BATCH_SIZE = 12
_NUM_ALLOCATIONS = 20


class StrategyConformance(ABC):
    """Tests of one strategy. Subclass it, name the subclass `Test…`, and write `make`.

    Example:
        >>> from coba_rl.allocation.strategies import make_strategy
        >>> class TestUniform(StrategyConformance):
        ...     def make(self):
        ...         return make_strategy("uniform")
        >>> TestUniform().test_budgets_sum_to_the_total_within_the_bounds()
    """

    bounds: tuple[int, int] = (2, 16)
    """(fewest, most) rollouts of a prompt in every test."""

    @abstractmethod
    def make(self) -> Strategy:
        """A new strategy that has seen nothing, with the options to test."""

    def allocator(self, bounds: tuple[int, int] | None = None) -> BudgetAllocator:
        """A new allocator around `make`, told how long the training is."""
        allocator = BudgetAllocator(self.make(), bounds=bounds or self.bounds)
        allocator.begin(_NUM_ALLOCATIONS)
        return allocator

    # What it is

    def test_it_has_a_name(self) -> None:
        name = type(self.make()).name
        assert isinstance(name, str), f"name={name!r}: expected text in a class variable"
        assert name, "name is empty"

    def test_options_are_json_and_rebuild_the_strategy(self) -> None:
        strategy = self.make()
        options = json.loads(json.dumps(strategy.options(), allow_nan=False))
        again = type(strategy)(**options).options()
        assert again == options, f"rebuilt from its options {options} it has {again}"

    # Budgets

    def test_budgets_sum_to_the_total_within_the_bounds(self) -> None:
        low, high = self.bounds
        for num_prompts in (2, 7, _BATCH_SIZE):
            for total in _totals(num_prompts, low, high):
                allocator = self.allocator()
                for allocation in _play(allocator, num_steps=4, total=total, num_prompts=num_prompts):
                    _check(allocation, total, low, high)

    def test_smallest_and_largest_total(self) -> None:
        allocator = self.allocator()
        _play(allocator)
        for bound in self.bounds:
            budgets = allocator.allocate(range(_NUM_PROMPTS), total=bound * _NUM_PROMPTS).budgets
            assert (budgets == bound).all(), f"only {bound} for every prompt fits the total, got {budgets}"

    def test_equal_bounds(self) -> None:
        allocator = self.allocator(bounds=(4, 4))
        _play(allocator, total=4 * _BATCH_SIZE)
        budgets = allocator.allocate(range(5), total=20).budgets
        assert (budgets == 4).all(), f"bounds (4, 4) leave no choice, got {budgets}"

    def test_single_prompt(self) -> None:
        low, high = self.bounds
        allocator = self.allocator()
        _play(allocator)
        for total in range(low, high + 1):
            for prompt_id in (0, "never seen"):
                assert allocator.allocate([prompt_id], total).budgets.tolist() == [total]

    def test_empty_batch(self) -> None:
        for num_steps in (0, 2):
            allocator = self.allocator()
            _play(allocator, num_steps=num_steps)
            assert allocator.allocate([], total=0).budgets.shape == (0,)
            _check_metrics(allocator.metrics())

    def test_extreme_pass_rates(self) -> None:
        low, high = self.bounds
        for rates in (
            [0.0] * 8,
            [1.0] * 8,
            [0.0, 1.0] * 4,
            [1e-12, 1.0 - 1e-12] * 4,
            [0.0, 1e-12, 0.5, 1.0] * 2,
        ):
            for total in _totals(8, low, high):
                budgets = np.asarray(self.allocator().strategy.allocate(np.array(rates), total, low, high))
                _check(Allocation(list(range(8)), budgets, np.array(rates)), total, low, high)

    def test_infeasible_totals_are_refused(self) -> None:
        low, high = self.bounds
        allocator = self.allocator()
        for total in (-1, 3 * low - 1, 3 * high + 1):
            try:
                allocator.allocate(["a", "b", "c"], total)
            except InfeasibleBudgetError:
                continue
            raise AssertionError(f"total={total} for 3 prompts within {self.bounds} was accepted")

    # Fairness

    def test_prompts_never_seen_share_evenly(self) -> None:
        allocator = self.allocator()
        for ids in (["a", "b", "c", "d"], [*range(_NUM_PROMPTS), "a", "b", "c", "d"]):
            budgets = allocator.allocate(ids, total=9 * len(ids) + 2).budgets[-4:]
            assert np.ptp(budgets) <= 1, f"prompts of which nothing is known got {budgets}"
            _play(allocator)

    def test_equal_prompts_differ_by_at_most_one(self) -> None:
        low, high = self.bounds
        for passed in range(5):
            for total in _totals(12, low, high):
                allocator = self.allocator()
                _score(
                    allocator, {f"twin {i}": passed for i in range(8)} | {f"other {i}": i for i in range(4)}
                )
                ids = [f"twin {i}" for i in range(8)] + [f"other {i}" for i in range(4)]
                budgets = allocator.allocate(ids, total).budgets[:8]
                assert np.ptp(budgets) <= 1, f"8 prompts with {passed} of 4 passed got {budgets}"

    def test_order_of_the_batch_moves_budgets_by_at_most_one(self) -> None:
        low, high = self.bounds
        ids = [f"p{i}" for i in range(10)] + ["new a", "new b", "new c"]
        for total in _totals(len(ids), low, high):
            given = []
            for order in (ids, ids[::-1], ids[5:] + ids[:5]):
                allocator = self.allocator()
                _score(allocator, {f"p{i}": i % 5 for i in range(10)})
                budget_of = allocator.allocate(order, total).as_dict()
                given.append([budget_of[prompt_id] for prompt_id in ids])
            spread = np.ptp(given, axis=0)
            assert spread.max() <= 1, f"three orders of one batch got {given}"

    # Value

    def test_a_value_is_a_number_at_least_0_for_each_known_pass_rate(self) -> None:
        rates = np.array([0.0, 1e-12, 0.2, np.nan, 0.5, 1.0 - 1e-12, 1.0])
        for p_P in (rates, rates[:0], np.full(2, np.nan)):
            value_P = self.allocator().strategy.value(p_P, 8.0)
            if value_P is not None:
                assert value_P.shape == p_P.shape, f"{len(value_P)} values for {len(p_P)} pass rates"
                assert np.array_equal(np.isnan(value_P), np.isnan(p_P)), f"values of {p_P} are {value_P}"
                assert not (value_P < 0.0).any(), f"values of {p_P} are {value_P}"

    # Memory

    def test_same_history_same_budgets(self) -> None:
        first, second = self.allocator(), self.allocator()
        given = _budgets(_play(first))
        assert given == _budgets(_play(second)), "two new objects with one history gave different budgets"

    def test_resume_continues_bit_for_bit(self) -> None:
        uninterrupted, resumed = self.allocator(), self.allocator()
        _play(uninterrupted, seed=1)
        saved = json.dumps(uninterrupted.state_dict(), allow_nan=False)
        expected = _budgets(_play(uninterrupted, seed=2))
        resumed.load_state_dict(json.loads(saved))
        assert _budgets(_play(resumed, seed=2)) == expected, "budgets differ after a resume"
        assert resumed.metrics() == uninterrupted.metrics(), "metrics differ after a resume"
        assert json.dumps(resumed.state_dict()) == json.dumps(uninterrupted.state_dict()), "states differ"

    def test_saved_state_is_a_snapshot(self) -> None:
        allocator, other = self.allocator(), self.allocator()
        _play(allocator, seed=1)
        state = allocator.state_dict()
        before = json.dumps(state)
        other.load_state_dict(state)
        _play(allocator, seed=2)
        _play(other, seed=3)
        assert json.dumps(state) == before, "training on changed a state that was saved or loaded before"

    def test_pass_rates_are_probabilities(self) -> None:
        allocator = self.allocator()
        _play(allocator)
        ids = [*range(_NUM_PROMPTS), "never seen"]
        rates = allocator.strategy.pass_rates(ids)
        assert rates.shape == (len(ids),)
        outside = (rates < 0.0) | (rates > 1.0)  # NaN, "unknown", is in neither
        assert not outside.any(), f"pass rates outside [0, 1]: {rates[outside]}"
        assert not allocator.strategy.seen(["never seen"])[0]

    def test_two_rounds_keep_total_bounds_and_pilot(self) -> None:
        low, high = self.bounds
        pilot = min(low + 1, high)
        strategy = self.make()
        strategy.begin(10)
        allocator = BudgetAllocator(strategy, bounds=self.bounds, pilot=pilot)
        rng = np.random.default_rng(0)
        for total in _totals(_BATCH_SIZE, pilot, high):
            ids = rng.permutation(_NUM_PROMPTS)[:_BATCH_SIZE]
            first = allocator.allocate(ids, total)
            _check(first, _BATCH_SIZE * pilot, pilot, pilot)
            whole = allocator.allocate_rest(rng.choice([0.0, 1.0, np.nan], first.total))
            _check(whole, total, pilot, high)
            in_pilot = np.concatenate([np.arange(budget) < pilot for budget in whole.budgets])
            allocator.observe(ids[whole.repeat_index], rng.choice([0.0, 1.0], total), in_pilot)

    def test_limited_tokens_keep_total_bounds_and_limit(self) -> None:
        low, high = self.bounds
        if "tokens" not in self.make().budget_units:
            return
        allocator = BudgetAllocator(self.make(), bounds=self.bounds, budget_unit="tokens")
        allocator.begin(_NUM_ALLOCATIONS)
        rng, ids = np.random.default_rng(0), np.arange(_BATCH_SIZE)
        for total in _totals(_BATCH_SIZE, low, high):
            allocation = allocator.allocate(ids, total)
            _check(allocation, total, low, high)
            id_R = ids[allocation.repeat_index]
            allocator.observe(id_R, rng.choice([0.0, 1.0], total), lengths=10.0 + 20.0 * id_R)
            cost_P = allocator.expected_tokens(ids)
            limit, most = total / _BATCH_SIZE * cost_P.sum() * (1 + 1e-9), cost_P.max()
            tokens = float((allocator.allocate(ids, total).budgets * cost_P).sum())
            assert tokens <= limit, f"{tokens} expected tokens of {total} rollouts, even budgets have {limit}"
            tokens = float((allocator.allocate(ids, tokens=limit).budgets * cost_P).sum())
            assert limit - most <= tokens <= limit * (1 + 1e-9), f"{tokens} tokens with the limit {limit}"

    def test_a_look_at_outcomes_leaves_no_trace(self) -> None:
        strategy = self.allocator().strategy
        strategy.observe(Visits(["a", "b"], np.array([1.0, 2.0]), np.array([4.0, 4.0])))
        before = json.dumps([strategy.state_dict(), strategy.prompts.state_dict()])
        strategy.pass_rates_given(
            ["a", "new"], Visits(["a", "new"], np.array([2.0, 0.0]), np.array([2.0, 2.0]))
        )
        after = json.dumps([strategy.state_dict(), strategy.prompts.state_dict()])
        assert after == before, "a look at outcomes changed the state"

    def test_allocating_leaves_the_pass_rates_alone(self) -> None:
        low, high = self.bounds
        rates = np.array([0.0, 0.2, 0.5, np.nan, 1.0])
        before = rates.copy()
        self.allocator().strategy.allocate(rates, 5 * (low + high) // 2, low, high)
        assert np.array_equal(rates, before, equal_nan=True), "allocate changed its input"

    def test_metrics_are_finite_numbers(self) -> None:
        allocator = self.allocator()
        _check_metrics(allocator.strategy.metrics())
        for scores in ({"a": 0, "b": 0}, {"a": 4, "b": 4}, {"a": 2, "c": 1}):
            allocator.allocate(["a", "b", "c"], total=3 * self.bounds[1] - 1)
            _check_metrics(allocator.metrics())
            _score(allocator, scores)
            _check_metrics(allocator.metrics())


def _totals(num_prompts: int, low: int, high: int) -> list[int]:
    """Scarce, odd, middling and plentiful totals that fit the bounds."""
    least, most = num_prompts * low, num_prompts * high
    return sorted({least, min(least + 1, most), (2 * least + most) // 3, (least + most) // 2, most})


def _score(allocator: BudgetAllocator, passed_of_4: dict[Any, int]) -> None:
    """Report 4 rollouts a prompt, so many of which passed."""
    ids = [prompt_id for prompt_id in passed_of_4 for _ in range(4)]
    allocator.observe(ids, [float(i < passed) for passed in passed_of_4.values() for i in range(4)])


def _play(
    allocator: BudgetAllocator,
    num_steps: int = 5,
    total: int | None = None,
    num_prompts: int = _BATCH_SIZE,
    seed: int = 0,
) -> list[Allocation]:
    """Run steps on random batches of prompts whose true pass rates run from 0 to 1, both included."""
    rng = np.random.default_rng(seed)
    true_rates = np.clip(np.linspace(-0.2, 1.2, _NUM_PROMPTS), 0.0, 1.0)
    low, high = allocator.bounds
    allocations = []
    for _ in range(num_steps):
        ids = rng.permutation(_NUM_PROMPTS)[:num_prompts]
        allocation = allocator.allocate(ids, (low + high) * num_prompts // 2 - 1 if total is None else total)
        rollouts = ids[allocation.repeat_index]
        allocator.observe(rollouts, (rng.random(len(rollouts)) < true_rates[rollouts]).astype(float))
        allocations.append(allocation)
    return allocations


def _budgets(allocations: list[Allocation]) -> list[list[int]]:
    return [allocation.budgets.tolist() for allocation in allocations]


def _check(allocation: Allocation, total: int, low: int, high: int) -> None:
    budgets, rates = allocation.budgets, allocation.pass_rates
    assert np.issubdtype(budgets.dtype, np.integer), f"budgets are {budgets.dtype}, expected integers"
    assert budgets.shape == rates.shape, f"{len(budgets)} budgets for {len(rates)} prompts"
    assert budgets.sum() == total, f"budgets {budgets} for pass rates {rates} do not sum to {total}"
    within = (budgets >= low) & (budgets <= high)
    assert within.all(), f"budgets {budgets} for pass rates {rates} leave the bounds ({low}, {high})"


def _check_metrics(metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        assert isinstance(name, str), f"metric {name!r} is not named by text"
        assert isinstance(value, (int, float)), f"metric {name} is {value!r}, expected a number"
        assert math.isfinite(value), f"metric {name} is {value!r}, expected a finite number"
