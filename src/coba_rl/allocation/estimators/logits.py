"""Logits of pass rates, normal ones included: means, likelihoods, posteriors. Axes: `_P` prompts.

Where a rollout passes by luck with chance g, the `guess_rate`, the share of rollouts that pass is g + (1 − g)·sigmoid(x).
"""

from __future__ import annotations

import numpy as np

LARGEST_LOGIT = 9.0
"""Bound of every estimated logit: outcomes of a prompt that never passes do not tell how far it is from 0."""
_TINY = 1e-9  # keeps logits finite
_NEWTON_STEPS = 8
_LARGEST_STEP = 2.0  # logits; keeps the first Newton steps of 0/n outcomes in range
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_GRID = np.linspace(-8.0, 8.0, 129)  # standard deviations; finer than the nodes, for likelihoods with a peak
_LOG_GRID_WEIGHTS = -(_GRID**2) / 2.0 - np.log(np.exp(-(_GRID**2) / 2.0).sum())


def logit(p: np.ndarray) -> np.ndarray:
    """log(p/(1 − p)), finite for p in {0, 1} too."""
    p = np.clip(p, _TINY, 1.0 - _TINY)
    return np.log(p) - np.log1p(-p)


def sigmoid(x: np.ndarray | float) -> np.ndarray:
    """1/(1 + e^−x), the inverse of `logit`."""
    return 1.0 / (1.0 + np.exp(-x))


def mean_of_sigmoid(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E[sigmoid(x)] for x normal: MacKay's probit approximation, below the bound E[e^x] of its tail."""
    size = np.abs(mean)
    tail = np.exp(np.minimum(variance / 2.0 - size, 0.0))
    rare = np.minimum(sigmoid(-size / np.sqrt(1.0 + np.pi * variance / 8.0)), tail)
    return np.where(mean > 0.0, 1.0 - rare, rare)


def learnable(rate: np.ndarray | float, guess_rate: float) -> np.ndarray | float:
    """sigmoid(x) of the share of rollouts that pass; below 0 where fewer passed than by luck."""
    return (rate - guess_rate) / (1.0 - guess_rate)


def expected_rate(
    mean: np.ndarray, variance: np.ndarray, attempts: np.ndarray, guess_rate: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of the share of rollouts that pass, its slope in the logit, and its variance."""
    flat = 1.0 / np.sqrt(1.0 + np.pi * variance / 8.0)
    known = sigmoid(mean * flat)
    slope = (1.0 - guess_rate) * (np.maximum(known * (1.0 - known), 1e-6) * flat)
    p = guess_rate + (1.0 - guess_rate) * known
    return p, slope, p * (1.0 - p) / attempts + slope**2 * variance + 1e-6


def log_likelihood_ratio(
    mean: np.ndarray,
    variance: np.ndarray,
    successes: np.ndarray,
    attempts: np.ndarray,
    guess_rate: float = 0.0,
) -> np.ndarray:
    """log of how much likelier outcomes are for normal logits x than for a prompt that passes by luck alone.

    That is log E[(r/g)^successes · (1 − sigmoid(x))^misses] with r = g + (1 − g)·sigmoid(x). Without luck a success
    makes it infinite.
    """
    if guess_rate == 0.0:
        x = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
        missed = np.log(((1.0 - sigmoid(x)) ** attempts[:, None] * _WEIGHTS).sum(axis=1) + 1e-300)
        return np.where(successes > 0.0, np.inf, missed)
    x = mean[:, None] + np.sqrt(variance)[:, None] * _GRID
    rate = guess_rate + (1.0 - guess_rate) * sigmoid(x)
    passed = successes[:, None] * (np.log(rate) - np.log(guess_rate))
    missed = (attempts - successes)[:, None] * -np.logaddexp(0.0, x)
    return np.logaddexp.reduce(passed + missed + _LOG_GRID_WEIGHTS, axis=1)


def posterior_of_logit(
    mean: np.ndarray,
    variance: np.ndarray,
    successes: np.ndarray,
    attempts: np.ndarray,
    guess_rate: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Laplace approximation of a normal prior of a logit times the likelihood of the outcomes."""
    x = mean.copy()
    for _ in range(_NEWTON_STEPS):
        gradient, information = _slope_of_log_likelihood(x, successes, attempts, guess_rate)
        step = (gradient - (x - mean) / variance) / (information + 1.0 / variance)
        x = np.clip(x + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP), -LARGEST_LOGIT, LARGEST_LOGIT)
    return x, 1.0 / (_slope_of_log_likelihood(x, successes, attempts, guess_rate)[1] + 1.0 / variance)


def _slope_of_log_likelihood(
    x: np.ndarray, successes: np.ndarray, attempts: np.ndarray, guess_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Derivative of the log likelihood of the outcomes in the logit, and how fast it falls, at least 0."""
    p = sigmoid(x)
    by_luck = guess_rate / (guess_rate + (1.0 - guess_rate) * p)  # chance that a success was luck
    lucky = successes * by_luck
    gradient = successes - lucky - (attempts - lucky) * p
    bend = (attempts - lucky) * p * (1.0 - p) - lucky * (1.0 - by_luck) * (1.0 - p) ** 2
    return gradient, np.maximum(bend, 0.0)
