"""The ability model against a policy whose true pass rates are known."""

from __future__ import annotations

import numpy as np
import pytest

from coba_rl.allocation.estimators import PassRateEstimator, Visits, make_estimator
from coba_rl.allocation.estimators.ability import AbilityEstimator
from coba_rl.allocation.estimators.logits import sigmoid

NUM_PROMPTS, BATCH, ROLLOUTS, STEPS = 512, 32, 16, 96


def simulate(estimator: PassRateEstimator, seed: int) -> tuple[float, float]:
    """Root mean squared error of the estimates, and the share of true rates inside the 90 % intervals.

    The policy's ability rises by three logits over training and each prompt wanders on its own.
    """
    rng = np.random.default_rng(seed)
    logit = rng.normal(-2.0, 1.7, NUM_PROMPTS)
    errors, inside = [], []
    for step in range(STEPS):
        batch = rng.permutation(NUM_PROMPTS)[:BATCH]
        logit = logit + 3.0 / STEPS + rng.normal(0.0, 0.05, NUM_PROMPTS)
        truth, ids = sigmoid(logit[batch]), [f"p{i}" for i in batch]
        if step >= STEPS // 3:
            errors.append(np.mean((estimator.estimate(ids) - truth) ** 2))
            if isinstance(estimator, AbilityEstimator):
                low, high = estimator.interval(ids, 0.9)
                inside.append(np.mean((low <= truth) & (truth <= high)))
        estimator.update(
            Visits(ids, rng.binomial(ROLLOUTS, truth).astype(float), np.full(BATCH, float(ROLLOUTS)))
        )
    return float(np.sqrt(np.mean(errors))), float(np.mean(inside)) if inside else np.nan


@pytest.mark.parametrize("seed", range(3))
def test_it_is_closer_than_the_drift_correction(seed: int) -> None:
    ability, _ = simulate(AbilityEstimator(), seed)
    drift, _ = simulate(make_estimator("drift", decay=0.5), seed)
    assert ability < 0.95 * drift


def test_its_intervals_cover_what_they_say() -> None:
    coverage = np.mean([simulate(AbilityEstimator(), seed)[1] for seed in range(5)])
    assert 0.85 < coverage < 0.95


def test_a_prompt_never_seen_gets_the_pass_rate_of_a_typical_one() -> None:
    estimator = AbilityEstimator()
    rng = np.random.default_rng(0)
    truth = sigmoid(rng.normal(-1.0, 1.0, 64))
    for start in range(0, 64, 16):
        ids = [f"p{i}" for i in range(start, start + 16)]
        passed = rng.binomial(16, truth[start : start + 16]).astype(float)
        estimator.update(Visits(ids, passed, np.full(16, 16.0)))
    assert estimator.estimate(["new"])[0] == pytest.approx(truth.mean(), abs=0.08)


def test_hopeless_prompts_sink_and_stay_probabilities() -> None:
    estimator = AbilityEstimator()
    previous = 1.0
    for _ in range(20):
        estimator.update(Visits(["never"], np.array([0.0]), np.array([16.0])))
        now = estimator.estimate(["never"])[0]
        assert 0.0 < now < previous
        previous = now
    assert previous < 0.02
