"""Two rounds: a pilot, a look at it, the rest. Exact, without a trace, and without bias from stopping."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl import STRATEGIES, Allocation, BudgetAllocator
from coba_rl.allocation.estimators import ESTIMATORS, Visits
from coba_rl.allocation.solvers import heap
from coba_rl.allocation.value import coba_gains
from coba_rl.errors import CobaError, InfeasibleBudgetError, OptionError


def two_rounds(
    allocator: BudgetAllocator, ids: list[int], p_P: np.ndarray, total: int, rng: np.random.Generator
) -> tuple[Allocation, np.ndarray, np.ndarray, np.ndarray]:
    """A step whose rollouts pass with the given rates: the whole allocation, and (R,) prompt, success, whether in the pilot."""
    first = allocator.allocate(ids, total)
    pilot_R = (rng.random(first.total) < p_P[first.repeat_index]).astype(float)
    whole = allocator.allocate_rest(pilot_R)
    rest_P = np.repeat(np.arange(len(ids)), whole.budgets - first.budgets)
    position_R = np.concatenate([first.repeat_index, rest_P])
    success_R = np.concatenate([pilot_R, rng.random(len(rest_P)) < p_P[rest_P]])
    return whole, position_R, success_R, np.arange(total) < first.total


def observe(allocator: BudgetAllocator, ids: list[int], played: Any) -> None:
    _, position_R, success_R, in_pilot = played
    allocator.observe([ids[i] for i in position_R], success_R, in_pilot)


def learned(allocator: BudgetAllocator) -> str:
    state = allocator.state_dict()
    return json.dumps(
        [state["prompts"], state["strategy_state"]["capability"], state["strategy_state"]["estimator"]]
    )


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@settings(max_examples=20)
@given(data=st.data())
def test_totals_bounds_and_pilot_are_kept(name: str, data: st.DataObject) -> None:
    num_prompts, pilot, high = (
        data.draw(st.integers(1, 12)),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(6, 20)),
    )
    each = max(pilot, 2)
    total = data.draw(st.integers(num_prompts * each, num_prompts * high))
    allocator = BudgetAllocator(name, bounds=(2, high), pilot=pilot)
    allocator.begin(3)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ids = rng.integers(0, 9, num_prompts).tolist()  # some of them twice
    for _ in range(3):
        first = allocator.allocate(ids, total)
        assert first.is_pilot
        assert (first.budgets == each).all()
        assert first.remaining == total - num_prompts * each
        before = learned(allocator)
        whole = allocator.allocate_rest(rng.choice([0.0, 0.5, 1.0, np.nan], first.total))
        assert learned(allocator) == before
        assert not whole.is_pilot
        assert whole.budgets.sum() == total
        assert (whole.budgets >= each).all()
        assert (whole.budgets <= high).all()
        in_pilot = np.concatenate([np.arange(budget) < each for budget in whole.budgets])
        rollouts = [ids[i] for i in whole.repeat_index]
        allocator.observe(rollouts, rng.choice([0.0, 1.0, np.nan], len(rollouts)), in_pilot)


@given(seed=st.integers(0, 10_000))
def test_the_greedy_goes_on_from_the_pilot_with_what_it_showed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    allocator = BudgetAllocator("coba", bounds=(1, 30), pilot=3)
    ids, rates = [*range(8)], rng.random(8)
    observe(allocator, ids, two_rounds(allocator, ids, rates, 80, rng))
    whole, position_R, success_R, in_pilot = two_rounds(allocator, ids, rates, 80, rng)
    passed_P = np.bincount(position_R[in_pilot], success_R[in_pilot], minlength=8)
    expected = allocator.strategy.pass_rates_given(ids, Visits(ids, passed_P, np.full(8, 3.0)))
    assert whole.pass_rates.tolist() == expected.tolist()
    strategy: Any = allocator.strategy
    gains = coba_gains(expected, *strategy.shape(), strategy.choose_tau(expected, 10.0))
    assert whole.budgets.tolist() == heap(gains, 80, 3, 30).tolist()


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_both_rounds_are_one_visit(estimator: str) -> None:
    rng = np.random.default_rng(0)
    allocator, oracle = (
        BudgetAllocator("coba", bounds=(2, 32), pilot=4, estimator=estimator) for _ in range(2)
    )
    ids, rates = [*range(6)], np.linspace(0.1, 0.9, 6)
    for _ in range(3):
        played = two_rounds(allocator, ids, rates, 60, rng)
        observe(allocator, ids, played)
        whole, position_R, success_R, in_pilot = played
        passed_P, of_pilot_P = (
            np.bincount(position_R[chosen], success_R[chosen]) for chosen in (slice(None), in_pilot)
        )
        both = Visits(ids, passed_P, whole.budgets.astype(float))
        oracle.strategy.observe(Visits(ids, of_pilot_P, np.full(6, 4.0), both))
        assert learned(oracle) == learned(allocator)
        assert allocator.metrics()["coba/success_per_prompt"] == pytest.approx(of_pilot_P.mean() / 4.0)


def test_a_dead_group_is_judged_whole() -> None:
    allocator = BudgetAllocator("uniform", bounds=(2, 8), pilot=2)
    allocator.observe(["a"] * 4 + ["b"] * 4, [1, 1, 1, 0, 0, 0, 0, 0], np.arange(8) % 4 < 2)
    assert allocator.metrics()["coba/dead_groups"] == 0.5


def test_a_prompt_whose_pilot_was_lost_is_still_visited() -> None:
    for estimator in sorted(ESTIMATORS):
        allocator = BudgetAllocator("coba", bounds=(2, 8), pilot=2, estimator=estimator)
        outcomes = [np.nan, np.nan, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
        allocator.observe(["a"] * 4 + ["b"] * 4, outcomes, np.arange(8) % 4 < 2)
        a, b = allocator.strategy.pass_rates(["a", "b"])
        assert a > b


def test_a_pilot_that_tells_nothing_changes_nothing() -> None:
    allocator = BudgetAllocator("coba", bounds=(2, 8), pilot=2)
    allocator.observe(["a"] * 4 + ["b"] * 4, [1, 1, 1, 0, 0, 0, 0, 0], np.ones(8, bool))
    first = allocator.allocate(["a", "b"], 8)
    lost = allocator.allocate_rest([None] * 4)
    assert lost.pass_rates.tolist() == first.pass_rates.tolist()
    known = np.array([0.3, 0.6])
    allocator.allocate(["a", "b"], 8, pass_rates=known)
    assert allocator.allocate_rest([1.0, 1.0, 0.0, 0.0]).pass_rates.tolist() == known.tolist()


def test_what_is_kept_of_other_prompts_costs_a_look_nothing() -> None:
    allocator = BudgetAllocator("coba", bounds=(2, 8), pilot=2)
    allocator.strategy.observe(Visits([*range(5000)], np.ones(5000), np.full(5000, 2.0)))
    table = allocator.strategy.prompts.excerpt([3, "new", 3, 4000])
    assert len(table) == 2
    assert table.nbytes < allocator.strategy.prompts.nbytes / 20


# Without bias from stopping: of prompts with one pass rate, each new to the allocator

RATE, PILOT, PROMPTS, STEPS = 0.4, 4, 64, 150


@pytest.fixture(scope="module")
def steps() -> dict[str, np.ndarray]:
    """(STEPS,) mean success as capability and window have it, and of all rollouts of a prompt, over its prompts."""
    rng = np.random.default_rng(7)
    found: dict[str, list[float]] = {"capability": [], "window": [], "whole": []}
    for _ in range(STEPS):
        allocator = BudgetAllocator("coba-paper", bounds=(2, 64), pilot=PILOT)
        ids = [*range(PROMPTS)]
        played = two_rounds(allocator, ids, np.full(PROMPTS, RATE), PROMPTS * 16, rng)
        observe(allocator, ids, played)
        whole, position_R, success_R, _ = played
        found["capability"].append(1.0 - allocator.strategy.capability.failure_rate)
        found["window"].append(float(allocator.strategy.pass_rates(ids).mean()))
        found["whole"].append(float((np.bincount(position_R, success_R) / whole.budgets).mean()))
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("name", ["capability", "window"])
def test_shares_that_passed_have_no_bias(steps: dict[str, np.ndarray], name: str) -> None:
    assert abs(steps[name].mean() - RATE) < 4.0 * steps[name].std() / np.sqrt(STEPS)


def test_the_share_of_all_rollouts_has_one(steps: dict[str, np.ndarray]) -> None:
    assert abs(steps["whole"].mean() - RATE) > 8.0 * steps["whole"].std() / np.sqrt(STEPS)


def test_a_posterior_from_all_rollouts_is_calibrated() -> None:
    """Over pass rates from its prior, of prompts that were solved: the others have less of a prior."""
    rng = np.random.default_rng(3)
    errors, extra = [], []
    for _ in range(40):
        estimator = {"name": "posterior", "prior": (1.0, 2.0)}
        allocator = BudgetAllocator("coba", bounds=(2, 64), pilot=PILOT, estimator=estimator)
        ids, rates = [*range(PROMPTS)], rng.beta(1.0, 2.0, PROMPTS)
        played = two_rounds(allocator, ids, rates, PROMPTS * 16, rng)
        observe(allocator, ids, played)
        whole, position_R, success_R, _ = played
        solved = np.bincount(position_R, success_R) > 0
        errors.append((allocator.strategy.pass_rates(ids) - rates)[solved])
        extra.append(whole.budgets[solved] > 16)
    error, more = np.concatenate(errors), np.concatenate(extra)
    for chosen in (more, ~more):  # also among those the pilot sent many to, and few
        assert abs(error[chosen].mean()) < 4.0 * error[chosen].std() / np.sqrt(chosen.sum())


def test_ability_is_as_well_calibrated_as_with_one_round() -> None:
    bias, rmse = {}, {}
    for pilot in (0, PILOT):
        error = np.concatenate([_errors_of_ability(pilot, seed) for seed in range(6)])
        bias[pilot], rmse[pilot] = abs(error.mean()), np.sqrt((error**2).mean())
    assert bias[PILOT] < 0.01
    assert rmse[PILOT] < rmse[0]  # what the pilot shows is news


def _errors_of_ability(pilot: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.0, 1.5, 96)
    allocator, errors = BudgetAllocator("coba", bounds=(2, 64), pilot=pilot), []
    for step in range(30):
        rates = 1.0 / (1.0 + np.exp(-logits))
        ids = rng.permutation(96)[:48].tolist()
        if pilot:
            played = two_rounds(allocator, ids, rates[ids], 48 * 16, rng)
        else:
            even = allocator.allocate(ids, 48 * 16)
            position_R = even.repeat_index
            success_R = (rng.random(48 * 16) < rates[ids][position_R]).astype(float)
            played = even, position_R, success_R, np.ones(48 * 16, bool)
        observe(allocator, ids, played)
        if step >= 10:
            errors.append(played[0].pass_rates - rates[ids])
        logits = logits + 0.05
    return np.concatenate(errors)


# What cannot be, and states


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pilot": -1}, r"pilot=-1: expected a whole number of rollouts from 0 \(one round\) to 128"),
        ({"pilot": 2.0}, "pilot=2.0: expected a whole number"),
        ({"pilot": True}, "pilot=True: expected a whole number"),
        ({"pilot": 9, "bounds": (2, 8)}, r"pilot=9: .* to 8, the most of a prompt"),
        ({"pilot": 2, "mode": "weights"}, "pilot=2 with mode='weights'.*expected one of them"),
    ],
)
def test_what_cannot_be_a_pilot(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BudgetAllocator("coba", **options)


def test_a_total_that_does_not_hold_the_pilot() -> None:
    allocator = BudgetAllocator("coba", pilot=8)
    with pytest.raises(
        InfeasibleBudgetError,
        match=r"total=15 .* pilot of 8 for each of 2 prompts: expected at least 16.*at most 7",
    ):
        allocator.allocate(["a", "b"], 15)


def test_the_rest_comes_once_and_after_a_pilot() -> None:
    one_round, allocator = BudgetAllocator("coba"), BudgetAllocator("coba", pilot=2)
    one_round.allocate(["a"], 4)
    for without in (one_round, allocator):
        with pytest.raises(CobaError, match="without a pilot under way"):
            without.allocate_rest([1.0])
    allocator.allocate(["a"], 4)
    with pytest.raises(
        ValueError, match="1 successes: expected one for each rollout of the pilot, 1 prompts times 2"
    ):
        allocator.allocate_rest([1.0])
    with pytest.raises(ValueError, match="outside"):
        allocator.allocate_rest([1.0, 7.0])
    assert allocator.allocate_rest([1.0, 0.0]).budgets.tolist() == [4]  # a mistake does not end the step
    with pytest.raises(CobaError, match="without a pilot under way"):
        allocator.allocate_rest([1.0, 0.0])
    assert allocator.allocate([], 0).remaining == 0
    assert allocator.allocate_rest([]).budgets.tolist() == []


def test_a_pilot_must_be_told_apart() -> None:
    allocator = BudgetAllocator("coba", pilot=2)
    for in_pilot in (None, [True], [1, 0]):
        with pytest.raises(
            ValueError, match=r"in_pilot=.* with pilot=2: expected true or false for each of 2"
        ):
            allocator.observe(["a", "a"], [1.0, 0.0], in_pilot)


def test_a_preview_leaves_the_pilot_under_way() -> None:
    allocator = BudgetAllocator("coba", pilot=2)
    allocator.allocate(["a", "b"], 10)
    assert allocator.preview(["c"], 5).is_pilot
    assert allocator.allocate_rest([1.0, 0.0, 0.0, 0.0]).prompt_ids == ["a", "b"]


def test_resume_equals_no_interruption_and_another_pilot_is_said() -> None:
    def played(allocator: BudgetAllocator, seed: int) -> list[list[int]]:
        rng, ids, given = np.random.default_rng(seed), [*range(8)], []
        for _ in range(3):
            step = two_rounds(allocator, ids, np.linspace(0.1, 0.9, 8), 80, rng)
            observe(allocator, ids, step)
            given.append(step[0].budgets.tolist())
        return given

    straight, resumed = BudgetAllocator("coba", pilot=3), BudgetAllocator("coba", pilot=3)
    played(straight, 0)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert played(resumed, 1) == played(straight, 1)
    assert resumed.state_dict() == straight.state_dict()
    with pytest.warns(UserWarning, match="pilot: 3 → 0"):
        BudgetAllocator("coba").load_state_dict(straight.state_dict())
