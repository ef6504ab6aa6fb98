"""Logits of pass rates, normal ones included: means, likelihoods, posteriors. Axes: `_P` prompts."""

from __future__ import annotations

import numpy as np

LARGEST_LOGIT = 9.0
"""Bound of every estimated logit: outcomes of a prompt that never passes do not tell how far it is from 0."""
_TINY = 1e-9  # keeps logits finite
_NEWTON_STEPS = 8
_LARGEST_STEP = 2.0  # logits; keeps the first Newton steps of 0/n outcomes in range
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


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


def expected_rate(
    mean: np.ndarray, variance: np.ndarray, attempts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of the share of rollouts that pass, its slope in the logit, and its variance."""
    flat = 1.0 / np.sqrt(1.0 + np.pi * variance / 8.0)
    p = sigmoid(mean * flat)
    slope = np.maximum(p * (1.0 - p), 1e-6) * flat
    return p, slope, p * (1.0 - p) / attempts + slope**2 * variance + 1e-6


def log_chance_of_no_success(mean: np.ndarray, variance: np.ndarray, attempts: np.ndarray) -> np.ndarray:
    """log E[(1 − sigmoid(x))^attempts] for x normal, by Gauss–Hermite quadrature."""
    x = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
    return np.log(((1.0 - sigmoid(x)) ** attempts[:, None] * _WEIGHTS).sum(axis=1) + 1e-300)


def posterior_of_logit(
    mean: np.ndarray, variance: np.ndarray, successes: np.ndarray, attempts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Laplace approximation of a normal prior of a logit times a binomial likelihood."""
    x = mean.copy()
    for _ in range(_NEWTON_STEPS):
        p = sigmoid(x)
        gradient = successes - attempts * p - (x - mean) / variance
        curvature = attempts * p * (1.0 - p) + 1.0 / variance
        x = np.clip(
            x + np.clip(gradient / curvature, -_LARGEST_STEP, _LARGEST_STEP), -LARGEST_LOGIT, LARGEST_LOGIT
        )
    p = sigmoid(x)
    return x, 1.0 / (attempts * p * (1.0 - p) + 1.0 / variance)
