"""Estimators on populations that pull at them: polarised, drifting, jumping, long."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from populations import BATCH, HALVES, POLARISED, SMOOTH, SUDDEN, Errors, N, follow, polarised, with_luck

from coba_rl import BudgetAllocator, StateError
from coba_rl.allocation.estimators import ESTIMATORS, PassRateEstimator, Visits, make_estimator

POPULATIONS = {**SMOOTH, **SUDDEN, **POLARISED}
ROLLOUTS = (16, 2)
GUESS_RATES = (0.0, 0.1)
UPPER = {
    "all alike": 0.985,
    "drawing together": 0.98,
}  # learning that there is no spread takes an epoch or more


def estimator_of(name: str, guess_rate: float) -> PassRateEstimator:
    return make_estimator(name, guess_rate=guess_rate) if guess_rate else make_estimator(name)


@cache
def errors(name: str, population: str, rollouts: int, guess_rate: float = 0.0) -> Errors:
    found = []
    for seed in range(2):
        truth = POPULATIONS[population](np.random.default_rng([seed, 0]))
        estimator, rng = estimator_of(name, guess_rate), np.random.default_rng([seed, 1])
        found.append(follow(estimator, truth, rng, rollouts, guess_rate=guess_rate))
    return Errors(*np.mean([[e.rmse, e.covered, e.typical] for e in found], axis=0).tolist())


@pytest.mark.parametrize("rollouts", ROLLOUTS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_ability_is_at_least_as_close_as_any_other(population: str, rollouts: int) -> None:
    best = min(errors(name, population, rollouts).rmse for name in ("posterior", "drift"))
    assert errors("ability", population, rollouts).rmse <= best


@pytest.mark.parametrize("rollouts", ROLLOUTS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_luck_that_is_known_costs_little(population: str, rollouts: int) -> None:
    without, given = (errors("ability", population, rollouts, guess_rate).rmse for guess_rate in GUESS_RATES)
    assert given <= 2.0 * without + 0.02


@pytest.mark.parametrize("guess_rate", GUESS_RATES)
@pytest.mark.parametrize("rollouts", ROLLOUTS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_intervals_cover_what_they_say(population: str, rollouts: int, guess_rate: float) -> None:
    covered = errors("ability", population, rollouts, guess_rate).covered
    assert covered >= 0.8
    if population in {**SMOOTH, **SUDDEN}:  # an interval holds a pass rate of exactly 0 or 1 always or never
        assert covered <= UPPER.get(population, 0.97)


@pytest.mark.parametrize("guess_rate", GUESS_RATES)
@pytest.mark.parametrize("rollouts", ROLLOUTS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_a_prompt_never_seen_gets_the_mean_of_the_population(
    population: str, rollouts: int, guess_rate: float
) -> None:
    assert errors("ability", population, rollouts, guess_rate).typical < 0.05


def finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    if isinstance(value, list):
        return all(finite(v) for v in value)
    return isinstance(value, (bool, str)) or math.isfinite(value)


def run_long(name: str, rates: np.ndarray, steps: int, guess_rate: float = 0.0) -> float:
    """Root mean square error of the last estimates."""
    estimator, rng, ids = estimator_of(name, guess_rate), np.random.default_rng(0), [*range(len(rates))]
    for _ in range(steps):
        passed = rng.binomial(4, with_luck(rates, guess_rate)).astype(float)
        estimator.update(Visits(ids, passed, np.full(len(rates), 4.0)))
    assert finite(estimator.state_dict())
    json.dumps(estimator.table.state_dict(), allow_nan=False)
    return float(np.sqrt(np.mean((estimator.estimate(ids) - rates) ** 2)))


LONG = {"none passes": np.zeros(8), "all pass": np.ones(8), "half and half": HALVES[124:132]}


@pytest.mark.parametrize("guess_rate", GUESS_RATES)
@pytest.mark.parametrize("population", LONG)
def test_ability_does_not_run_away_in_20000_steps(population: str, guess_rate: float) -> None:
    assert run_long("ability", LONG[population], 20_000, guess_rate) < 0.002


@pytest.mark.parametrize("population", LONG)
@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"ability"}))
def test_no_other_estimator_runs_away(name: str, population: str) -> None:
    assert run_long(name, LONG[population], 2_000) < 0.15


@pytest.mark.parametrize("guess_rate", GUESS_RATES)
@pytest.mark.parametrize("before", [0.0, 1.0])
def test_pass_rates_that_were_dead_for_2000_steps_come_back(before: float, guess_rate: float) -> None:
    estimator, rng, ids = estimator_of("ability", guess_rate), np.random.default_rng(0), [*range(32)]
    for step in range(2_016):
        rate = before if step < 2_000 else 0.4
        passed = rng.binomial(8, with_luck(np.full(32, rate), guess_rate)).astype(float)
        estimator.update(Visits(ids, passed, np.full(32, 8.0)))
    assert estimator.estimate(ids).mean() == pytest.approx(0.4, abs=0.05)
    assert estimator.estimate(["never seen"])[0] == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("guess_rate", GUESS_RATES)
@pytest.mark.parametrize(("never", "always"), [(0.5, 0.5), (0.45, 0.45), (0.6, 0.0)])
def test_budgets_of_coba_go_where_prompts_can_be_learned(
    never: float, always: float, guess_rate: float
) -> None:
    rng = np.random.default_rng(0)
    allocator = BudgetAllocator("coba", estimator=estimator_of("ability", guess_rate))
    rates = polarised(rng, never, always)
    passing = with_luck(rates, guess_rate)
    live = (rates > 0.0) & (rates < 1.0)
    squared, of_live = [], []
    for step in range(200):
        batch = rng.permutation(N)[:BATCH]
        allocation = allocator.allocate(batch, total=16 * BATCH)
        rollouts = np.repeat(batch, allocation.budgets)
        allocator.observe(rollouts, (rng.random(len(rollouts)) < passing[rollouts]).astype(float))
        if step >= 100:
            squared.append(np.mean((allocation.pass_rates - rates[batch]) ** 2))
            of_live.extend(allocation.budgets[live[batch]])
    assert np.sqrt(np.mean(squared)) < 0.04
    if live.any():
        assert np.mean(of_live) > 16


@pytest.mark.parametrize(
    ("strategy", "where", "name", "value"),
    [
        ("coba", "estimator", "spread", -1.0),
        ("coba", "estimator", "spread", math.nan),
        ("coba", "estimator", "stretch", 0.0),
        ("coba", "estimator", "wander", math.inf),
        ("coba", "estimator", "step", -1),
        ("coba", "estimator", "centre", "high"),
        ("coba", "estimator", "shift", None),
        ("coba", "estimator", "trend", [0.0]),
        ("coba", "estimator", "trend", [0.0, math.nan]),
        ("coba", "estimator", "trend", 3.0),
        ("coba", "estimator", "hopeless_share", 1.0),
        ("coba", "capability", "recent", [1.5]),
        ("coba", "capability", "recent", [math.nan]),
        ("coba", None, "tau", 0.0),
        ("coba", None, "tau", math.nan),
        ("linear-decay", None, "step", -3),
        ("drift", "estimator", "recent", {"recent": [-0.1]}),
    ],
)
def test_an_impossible_number_in_a_saved_state_is_refused(
    strategy: str, where: str | None, name: str, value: Any
) -> None:
    options = {"estimator": "drift"} if strategy == "drift" else {}
    allocator = BudgetAllocator("coba" if strategy == "drift" else strategy, **options)
    allocator.begin(9)
    allocator.allocate([*range(4)], 64)
    allocator.observe([0, 0, 1, 1], [1.0, 0.0, 0.0, 0.0])
    state = json.loads(json.dumps(allocator.state_dict()))
    damaged = json.loads(json.dumps(state))
    held = damaged["strategy_state"][where] if where else damaged["strategy_state"]
    assert name in held
    held[name] = value
    with pytest.raises(StateError, match=name if strategy != "drift" else "recent"):
        allocator.load_state_dict(damaged)
    assert allocator.state_dict() == state


@pytest.mark.parametrize(
    ("strategy", "column", "value"),
    [
        ("coba", "variance", -0.1),
        ("coba", "logit", math.inf),
        ("coba", "step", -2.0),
        ("coba-paper", "attempts_0", -1.0),
        ("coba-paper", "successes_0", math.nan),
    ],
)
def test_an_impossible_number_of_a_saved_prompt_is_refused(strategy: str, column: str, value: float) -> None:
    allocator = BudgetAllocator(strategy)
    allocator.observe([0, 1], [1.0, 0.0])
    state = allocator.state_dict()
    state["prompts"]["columns"][column][0] = value
    with pytest.raises(StateError, match=column):
        allocator.load_state_dict(state)
