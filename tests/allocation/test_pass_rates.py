"""Estimators of pass rates: worked examples, what they forget, and what they carry over a restart."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import OptionError
from coba_rl.allocation.estimators import ESTIMATORS, PassRateEstimator, Visits, make_estimator
from coba_rl.allocation.estimators.drift import DriftEstimator
from coba_rl.allocation.estimators.posterior import PosteriorEstimator
from coba_rl.allocation.estimators.window import WindowEstimator


def state_of(estimator: PassRateEstimator) -> dict[str, Any]:
    return {"small": estimator.state_dict(), "table": estimator.table.state_dict()}


def restore(estimator: PassRateEstimator, state: dict[str, Any]) -> None:
    estimator.load_state_dict(state["small"])
    estimator.table = estimator.table.restored(state["table"])


def visit(estimator: PassRateEstimator, **passed_of_attempts: tuple[float, float]) -> None:
    passed, attempts = zip(*passed_of_attempts.values(), strict=True)
    estimator.update(Visits(list(passed_of_attempts), np.array(passed, float), np.array(attempts, float)))


def logit(p: float) -> float:
    return math.log(p / (1.0 - p))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


# Window


def test_window_pools_the_attempts_of_the_last_k_visits() -> None:
    estimator = WindowEstimator(visits=2)
    assert math.isnan(estimator.estimate(["a"])[0])
    for outcome, expected in (((1, 4), 1 / 4), ((6, 8), 7 / 12), ((0, 2), 6 / 10), ((2, 2), 2 / 4)):
        visit(estimator, a=outcome)
        assert estimator.estimate(["a"])[0] == pytest.approx(expected)


def test_window_counts_each_prompts_own_visits() -> None:
    estimator = WindowEstimator(visits=2)
    visit(estimator, a=(4, 4), b=(0, 4))
    for _ in range(3):
        visit(estimator, b=(4, 4))
    assert estimator.estimate(["a", "b", "c"])[:2].tolist() == [1.0, 1.0]


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_window_equals_pooling_a_list_of_visits(visits: int, history: list[tuple[int, int]]) -> None:
    history = [(min(passed, attempts), attempts) for passed, attempts in history]
    estimator = WindowEstimator(visits=visits)
    for outcome in history:
        visit(estimator, a=outcome)
    passed, attempts = map(sum, zip(*history[-visits:], strict=True))
    assert estimator.estimate(["a"])[0] == pytest.approx(passed / attempts)


# Posterior


def test_posterior_of_one_visit() -> None:
    estimator = PosteriorEstimator(prior=(1.0, 3.0))
    assert estimator.estimate(["new"]).tolist() == [0.25]
    visit(estimator, a=(3, 4))
    assert estimator.estimate(["a"])[0] == pytest.approx((3 + 1) / (4 + 4))


@given(st.floats(0.0, 1.0), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_old_counts_fade_by_the_decay_at_every_visit(decay: float, history: list[tuple[int, int]]) -> None:
    estimator = PosteriorEstimator(prior=(0.5, 0.5), decay=decay)
    passed = attempts = 0.0
    for successes, failures in history:
        visit(estimator, a=(successes, successes + failures))
        passed, attempts = decay * passed + successes, decay * attempts + successes + failures
    assert estimator.estimate(["a"])[0] == pytest.approx((passed + 0.5) / (attempts + 1.0))


def test_a_prompt_not_visited_does_not_fade() -> None:
    estimator = PosteriorEstimator()
    visit(estimator, a=(3, 4))
    before = estimator.estimate(["a"])[0]
    for _ in range(5):
        visit(estimator, b=(1, 4))
    assert estimator.estimate(["a"])[0] == before


def test_a_prompt_never_solved_has_a_weak_prior() -> None:
    estimator = PosteriorEstimator(prior=(0.5, 0.5), decay=1.0)
    visit(estimator, never=(0, 10), once=(1, 10))
    weight = PosteriorEstimator.NEVER_SOLVED_WEIGHT
    assert estimator.estimate(["never"])[0] == pytest.approx(0.5 * weight / (10 + weight))
    assert estimator.estimate(["once"])[0] == pytest.approx(1.5 / 11)
    for _ in range(9):
        visit(estimator, never=(0, 10))
    assert estimator.estimate(["never"])[0] == pytest.approx(0.5 * weight / (100 + weight))
    visit(estimator, never=(1, 10))
    assert estimator.estimate(["never"])[0] == pytest.approx(1.5 / 111)


def test_a_posterior_never_says_always_or_never() -> None:
    for estimator in (PosteriorEstimator(), DriftEstimator()):
        for _ in range(50):
            visit(estimator, all=(128, 128), none=(0, 128))
        assert ((estimator.estimate(["all", "none"]) > 0) & (estimator.estimate(["all", "none"]) < 1)).all()


# Drift


def smoothed_logit(success_rates: list[float]) -> float:
    """Logit of the mean success of the last 8 steps, kept off 0 and 1 by half a thousandth."""
    recent = success_rates[-DriftEstimator.SMOOTHING_STEPS :]
    return logit(0.999 * sum(recent) / len(recent) + 0.0005)


def test_an_estimate_moves_with_the_global_success_rate() -> None:
    estimator = DriftEstimator(prior=(0.5, 0.5))
    visit(estimator, a=(1, 4))
    stored = (1 + 0.5) / (4 + 1)
    assert estimator.estimate(["a"])[0] == pytest.approx(stored)
    success_rates = [0.25]
    for passed in (4, 4, 2, 0, 4, 4, 4, 4, 4):
        visit(estimator, b=(passed, 4))
        success_rates.append(passed / 4)
        shift = smoothed_logit(success_rates) - smoothed_logit([0.25])
        assert estimator.estimate(["a"])[0] == pytest.approx(sigmoid(logit(stored) + shift))


def test_a_visit_moves_the_old_counts_before_it_adds_new_ones() -> None:
    estimator = DriftEstimator(prior=(0.5, 0.5), decay=0.5)
    visit(estimator, a=(1, 4))
    visit(estimator, a=(3, 4))
    shift = smoothed_logit([0.25, 0.75]) - smoothed_logit([0.25])
    moved = sigmoid(logit(1.5 / 5) + shift)
    assert estimator.estimate(["a"])[0] == pytest.approx((0.5 * 4 * moved + 3 + 0.5) / (0.5 * 4 + 4 + 1))


def test_without_drift_the_estimate_of_the_last_visit_stays() -> None:
    estimator = DriftEstimator()
    visit(estimator, a=(1, 4), b=(3, 4))
    before = estimator.estimate(["a", "b"])
    for _ in range(20):
        visit(estimator, c=(1, 4), d=(3, 4))
    assert estimator.estimate(["a", "b"]) == pytest.approx(before)


def test_a_prompt_never_visited_has_the_global_success_rate_once_there_is_one() -> None:
    estimator = DriftEstimator(prior=(1.0, 3.0))
    assert estimator.estimate(["new"]).tolist() == [0.25]
    success_rates = []
    for passed in (0, 4, 3):
        visit(estimator, a=(passed, 4))
        success_rates.append(passed / 4)
        assert estimator.estimate(["new"])[0] == pytest.approx(sigmoid(smoothed_logit(success_rates)))


def test_drift_stays_finite_when_everything_or_nothing_passes() -> None:
    estimator = DriftEstimator()
    for passed in (0, 4):
        visit(estimator, a=(2, 4))
        for _ in range(20):
            visit(estimator, b=(passed, 4))
        assert 0.0 < estimator.estimate(["a"])[0] < 1.0


def test_drift_follows_a_policy_that_improves_better_than_a_plain_posterior() -> None:
    rng = np.random.default_rng(0)
    difficulty_P = rng.normal(0.0, 1.5, size=200)
    errors = {"posterior": [], "drift": []}
    estimators = {name: make_estimator(name) for name in errors}
    for step in range(60):
        true_P = 1.0 / (1.0 + np.exp(difficulty_P - step / 15.0))
        batch = rng.permutation(200)[:20]
        successes = rng.binomial(16, true_P[batch]).astype(float)
        for name, estimator in estimators.items():
            if step >= 20:
                errors[name].append(np.mean((estimator.estimate(batch.tolist()) - true_P[batch]) ** 2))
            estimator.update(Visits(batch.tolist(), successes, np.full(20, 16.0)))
    assert np.mean(errors["drift"]) < 0.8 * np.mean(errors["posterior"])


# All of them

OPTIONS = {
    "window": {"visits": 3},
    "posterior": {"prior": (1.0, 2.0), "decay": 0.7},
    "drift": {"decay": 0.3},
    "ability": {},
}
STEPS = st.lists(
    st.dictionaries(
        st.sampled_from("abcdefgh"), st.tuples(st.floats(0.0, 1.0), st.integers(1, 20)), min_size=1
    ),
    max_size=8,
)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(STEPS, STEPS)
def test_a_restart_continues_bit_for_bit(name: str, before: list[dict], after: list[dict]) -> None:
    estimator, resumed = (make_estimator(name, **OPTIONS[name]) for _ in range(2))
    for step in before:
        visit(estimator, **{i: (share * attempts, attempts) for i, (share, attempts) in step.items()})
    restore(resumed, json.loads(json.dumps(state_of(estimator), allow_nan=False)))
    for step in after:
        for one in (estimator, resumed):
            visit(one, **{i: (share * attempts, attempts) for i, (share, attempts) in step.items()})
    assert resumed.estimate("abcdefgh").tolist() == pytest.approx(
        estimator.estimate("abcdefgh").tolist(), rel=0, abs=0, nan_ok=True
    )
    assert state_of(resumed) == state_of(estimator)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(STEPS)
def test_estimates_are_probabilities(name: str, steps: list[dict]) -> None:
    estimator = make_estimator(name)
    for step in steps:
        visit(estimator, **{i: (share * attempts, attempts) for i, (share, attempts) in step.items()})
    rates = estimator.estimate("abcdefgh")
    assert not ((rates < 0.0) | (rates > 1.0)).any()
    assert estimator.seen("abcdefgh").tolist() == [any(i in step for step in steps) for i in "abcdefgh"]


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_thousands_of_prompts_keep_their_own_numbers(name: str) -> None:
    estimator, alone, resumed = make_estimator(name), {}, make_estimator(name)
    for first in range(0, 1000, 50):
        ids = list(range(first, first + 50))
        passed = np.array([i % 9 for i in ids], dtype=float)
        estimator.update(Visits(ids, passed, np.full(50, 8.0 + first % 3)))
        alone |= {i: estimator.estimate([i])[0] for i in ids} if name not in ("drift", "ability") else {}
        restore(resumed, state_of(estimator))  # exact columns, which then have to grow
        resumed.update(Visits(["another"], np.array([1.0]), np.array([2.0])))
    assert [estimator.estimate([i])[0] for i in alone] == list(alone.values())
    assert len(estimator.table) == 1000
    assert resumed.estimate(["another"])[0] == pytest.approx(0.5, abs=0.1 if name == "ability" else 1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("widow", {}, "Unknown estimator 'widow'. Did you mean 'window'"),
        ("window", {"decay": 0.5}, "Estimator 'window' has no option 'decay'. Known: visits"),
        ("ability", {"visits": 3}, "Estimator 'ability' has no option 'visits'. Known: guess_rate"),
        ("window", {"visits": 0}, "visits=0: expected at least 1"),
        ("posterior", {"decay": 1.5}, r"decay=1.5: expected a share in \[0, 1\]"),
        ("posterior", {"decay": math.nan}, "decay=nan"),
        ("drift", {"prior": (0.0, 1.0)}, r"prior=\(0.0, 1.0\): expected two positive numbers"),
        ("drift", {"prior": (1.0, math.inf)}, "prior"),
        ("drift", {"prior": 0.5}, r"prior=0.5: expected \(a finite number, a finite number\)"),
        ("drift", {"prior": (1.0, 2.0, 3.0)}, r"expected \(a finite number, a finite number\)"),
    ],
)
def test_wrong_options_say_what_is_expected(name: str, options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_estimator(name, **options)
