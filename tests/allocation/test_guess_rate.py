"""The ability model where a known share of the rollouts passes by luck."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from populations import BATCH, N, dead_beside, follow, logits, steady

from coba_rl import OptionError
from coba_rl.allocation.estimators import make_estimator
from coba_rl.allocation.estimators.logits import (
    expected_rate,
    log_likelihood_ratio,
    posterior_of_logit,
    sigmoid,
)

LUCK, HOPELESS = 0.1, 0.4
Z = np.linspace(-9.0, 9.0, 6001)
"""A grid of normal logits, in standard deviations from their mean."""


def estimates(guess_rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Of some populations of which rollouts pass by luck: last estimates, and what a rollout passes by knowing."""
    found = []
    for seed in range(4):
        estimator = make_estimator("ability", guess_rate=guess_rate)
        live = steady(sigmoid(logits(np.random.default_rng([seed, 0]))))
        truth = dead_beside(np.random.default_rng(seed), HOPELESS, live)
        follow(estimator, truth, np.random.default_rng([seed, 1]), 16, steps=20 * N // BATCH, guess_rate=LUCK)
        found.append((estimator.estimate([*range(N)]), truth(0)))
    estimate, truth = np.concatenate(found, axis=1)
    return estimate, truth


def test_with_the_rate_given_luck_is_not_taken_for_knowledge() -> None:
    estimate, truth = estimates(LUCK)
    assert estimate[truth == 0.0].mean() < 0.01
    assert estimate[truth == 0.0].max() < 0.1
    assert abs((estimate - truth)[truth > 0.0].mean()) < 0.02  # some hard ones are taken for hopeless


def test_without_the_rate_every_guess_looks_like_knowledge() -> None:
    estimate, truth = estimates(0.0)
    assert estimate[truth == 0.0].mean() == pytest.approx(LUCK, abs=0.01)
    assert (estimate - truth)[truth > 0.0].mean() > 0.05


@pytest.mark.parametrize("guess_rate", [-0.1, 1.0, math.nan, "often"])
def test_a_rate_that_is_no_chance_of_luck_is_refused(guess_rate: float) -> None:
    with pytest.raises(OptionError, match=f"guess_rate={guess_rate!r}: expected a"):
        make_estimator("ability", guess_rate=guess_rate)


# Likelihoods, against sums over a fine grid of logits

rates = st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.25, 0.5, 0.9])
means = st.floats(-4.0, 4.0)
variances = st.floats(0.01, 4.0)
narrow = st.floats(0.01, 0.25)
counts = st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def grid(mean: float, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits and the logs of their chances, which sum to 1."""
    weights = np.exp(-(Z**2) / 2.0)
    return mean + math.sqrt(variance) * Z, -(Z**2) / 2.0 - math.log(weights.sum())


def log_likelihood(rate: np.ndarray, fail: np.ndarray, passed: int, n: int) -> np.ndarray:
    """log chance of `passed` of n, but for the number of orders."""
    return (passed * np.log(rate) if passed else 0.0) + (n - passed) * np.log(fail)


def of_logit(x: np.ndarray, count: tuple[int, int], guess_rate: float) -> np.ndarray:
    return log_likelihood(
        guess_rate + (1.0 - guess_rate) * sigmoid(x), (1.0 - guess_rate) * sigmoid(-x), *count
    )


def as_arrays(*numbers: float) -> list[np.ndarray]:
    return [np.array([float(number)]) for number in numbers]


@given(means, variances, counts, rates.filter(lambda rate: rate >= 0.01))
def test_evidence_is_the_ratio_of_likelihoods(
    mean: float, variance: float, count: tuple[int, int], guess_rate: float
) -> None:
    x, log_weight = grid(mean, variance)
    knows = np.logaddexp.reduce(of_logit(x, count, guess_rate) + log_weight)
    guesses = log_likelihood(np.array(guess_rate), np.array(1.0 - guess_rate), *count)
    found = log_likelihood_ratio(*as_arrays(mean, variance, *count), guess_rate)[0]
    assert np.clip(found, -20.0, 20.0) == pytest.approx(np.clip(knows - guesses, -20.0, 20.0), abs=0.2)


def test_without_luck_a_success_is_proof_and_a_miss_evidence() -> None:
    mean, variance = np.array([-1.0, -1.0]), np.array([0.25, 0.25])
    hope, missed = log_likelihood_ratio(mean, variance, np.array([1.0, 0.0]), np.array([4.0, 4.0]))
    x, log_weight = grid(-1.0, 0.25)
    assert hope == math.inf
    assert missed == pytest.approx(np.logaddexp.reduce(of_logit(x, (0, 4), 0.0) + log_weight), abs=1e-3)


@given(means, narrow, st.integers(1, 64), rates)
def test_the_expected_share_of_passes_is_that_of_normal_logits(
    mean: float, variance: float, n: int, guess_rate: float
) -> None:
    x, log_weight = grid(mean, variance)
    rate, weight = guess_rate + (1.0 - guess_rate) * sigmoid(x), np.exp(log_weight)
    expected = (rate * weight).sum()
    p, slope, noise = (found[0] for found in expected_rate(*as_arrays(mean, variance, n), guess_rate))
    of_rate = ((rate - expected) ** 2 * weight).sum()
    assert p == pytest.approx(expected, abs=0.01)
    assert slope == pytest.approx((1.0 - guess_rate) * (sigmoid(x) * sigmoid(-x) * weight).sum(), abs=0.01)
    assert noise == pytest.approx((rate * (1.0 - rate) * weight).sum() / n + of_rate, abs=0.02)


@given(st.floats(-2.0, 4.0), st.floats(0.01, 1.0), counts, rates)  # further off there can be two peaks
def test_the_posterior_is_at_the_peak_and_as_wide_as_its_bend(
    mean: float, variance: float, count: tuple[int, int], guess_rate: float
) -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        return of_logit(x, count, guess_rate) - (x - mean) ** 2 / (2.0 * variance)

    (peak,), (width,) = posterior_of_logit(*as_arrays(mean, variance, *count), guess_rate)
    assert log_density(peak) >= log_density(np.linspace(-9.0, 9.0, 6001)).max() - 0.05
    step = 1e-3
    left, middle, right = log_density(peak + step * np.array([-1.0, 0.0, 1.0]))
    bend = max((2.0 * middle - left - right) / step**2, 1.0 / variance)
    assert 1.0 / width == pytest.approx(bend, rel=1e-2)
