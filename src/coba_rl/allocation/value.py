"""What rollouts are worth: value functions and their marginal gains, equation by equation.

Axes: `_P` prompts of the batch. Budgets are rollouts of one prompt, pass rates are in [0, 1].

Gains are kept as logarithms. The gain of CoBA-RL is geometric in the budget, so its logarithm is a straight
line: exact to compare, and free of the underflow that makes the 100th rollout of an easy prompt worth "0".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np


def log_beta_pdf(p_P: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Logarithm of the Beta(α, β) density (Eq. 8).

    Args:
        p_P: Pass rates in [0, 1].
        alpha: α > 0.
        beta: β > 0.

    Returns:
        (P,) log densities; −inf where the density is 0.

    Example:
        >>> np.exp(log_beta_pdf(np.array([0.25, 0.5]), 1.0, 1.0)).round(6).tolist()
        [1.0, 1.0]
    """
    normaliser = math.lgamma(alpha + beta) - math.lgamma(alpha) - math.lgamma(beta)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(alpha == 1.0, 0.0, (alpha - 1.0) * np.log(p_P))
        right = np.where(beta == 1.0, 0.0, (beta - 1.0) * np.log1p(-np.asarray(p_P)))
    return normaliser + left + right


def saturation(budget: np.ndarray | float, p_P: np.ndarray, tau: float) -> np.ndarray:
    """1 − e^{−(B/τ)·p(1−p)}: how much of what a prompt can teach B rollouts have shown (Eq. 5).

    Args:
        budget: B ≥ 0 rollouts, broadcast against `p_P`.
        p_P: Pass rates.
        tau: τ > 0, in rollouts; large τ saturates late.

    Returns:
        Shares in [0, 1].

    Example:
        >>> float(saturation(0, np.array([0.5]), tau=1.0)[0])
        0.0
    """
    p_P = np.asarray(p_P)
    return -np.expm1(-(np.asarray(budget) / tau) * p_P * (1.0 - p_P))


def coba_value(
    budget: np.ndarray | float, p_P: np.ndarray, alpha: float, beta: float, tau: float
) -> np.ndarray:
    """V(B, p) = (1 − e^{−(B/τ)·p(1−p)}) · BetaPDF(p; α, β) (Eq. 9).

    Example:
        >>> v = coba_value(np.array([2, 4]), np.array([0.5, 0.5]), alpha=5.5, beta=5.5, tau=4.0)
        >>> bool(v[1] > v[0])
        True
    """
    return saturation(budget, p_P, tau) * np.exp(log_beta_pdf(p_P, alpha, beta))


class Gains(ABC):
    """Marginal gains of a batch: what one more rollout adds to each prompt's value.

    A subclass gives the logarithm of V(B + 1) − V(B), which must not rise with B. That is what makes the
    greedy of Algorithm 1 exact.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of prompts P."""

    @abstractmethod
    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        """log(V(B + 1) − V(B)) of every prompt.

        Args:
            budget: Rollouts each prompt has, ≥ 1: (P,) or (P, n) for n budgets a prompt.

        Returns:
            The shape of `budget`; −inf where a rollout is worth nothing.
        """

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        """Budget each prompt reaches by buying every rollout whose log gain is at least `threshold`.

        The default bisects over [low, high]; a subclass whose gain has an inverse does better. Being off by
        a rollout is allowed: the solver checks.

        Args:
            threshold: A log gain, for all prompts or (P,) of them.
            low: Fewest rollouts of a prompt.
            high: Most rollouts of a prompt.

        Returns:
            (P,) int64 in [low, high].
        """
        return search_budgets(
            self, threshold, np.full(self.size, low, dtype=np.int64), np.full(self.size, high, dtype=np.int64)
        )


def search_budgets(
    gains: Gains, threshold: float | np.ndarray, fewest_P: np.ndarray, most_P: np.ndarray
) -> np.ndarray:
    """(P,) int64 budgets that buy every rollout of at least `threshold`, by bisection from `fewest_P` to `most_P`."""
    for _ in range(int((most_P - fewest_P).max(initial=0)).bit_length()):
        middle_P = (fewest_P + most_P) // 2
        worth_P = (gains.log_gain(middle_P) >= threshold) & (middle_P < most_P)
        fewest_P = np.where(worth_P, middle_P + 1, fewest_P)
        most_P = np.where(worth_P, most_P, middle_P)
    return fewest_P


def _column(values_P: np.ndarray, budget: np.ndarray) -> np.ndarray:
    return values_P if budget.ndim == 1 else values_P[:, None]


@dataclass(frozen=True, eq=False)
class GeometricGains(Gains):
    """ΔV(B) = e^{intercept − rate·B}: a straight line in the logarithm."""

    intercept_P: np.ndarray
    """log ΔV(0)."""
    rate_P: np.ndarray
    """Fall of the log gain a rollout, > 0 wherever `intercept_P` is finite."""

    @property
    def size(self) -> int:
        return len(self.intercept_P)

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        return _column(self.intercept_P, budget) - _column(self.rate_P, budget) * budget

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        with np.errstate(over="ignore"):  # the rate of a pass rate next to 0
            reach_P = np.floor((self.intercept_P - threshold) / self.rate_P) + 1.0
        return np.minimum(np.maximum(reach_P, low), high).astype(np.int64)


def coba_gains(p_P: np.ndarray, alpha: float, beta: float, tau: float) -> GeometricGains:
    """ΔV(B) = C·(1 − e^{−k})·e^{−kB}, C = BetaPDF(p; α, β), k = p(1−p)/τ (Proposition 2.2).

    Example:
        >>> gains = coba_gains(np.array([0.5]), alpha=5.5, beta=5.5, tau=4.0)
        >>> exact = coba_value(4, np.array([0.5]), 5.5, 5.5, 4.0) - coba_value(3, np.array([0.5]), 5.5, 5.5, 4.0)
        >>> bool(np.isclose(np.exp(gains.log_gain(np.array([3]))), exact)[0])
        True
    """
    p_P = np.asarray(p_P, dtype=float)
    rate_P = p_P * (1.0 - p_P) / tau
    live_P = rate_P > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        intercept_P = np.where(live_P, log_beta_pdf(p_P, alpha, beta) + np.log(-np.expm1(-rate_P)), -np.inf)
    return GeometricGains(intercept_P, np.where(live_P, rate_P, 1.0))


@dataclass(frozen=True, eq=False)
class _RateGains(Gains):
    """Gains of which the pass rates say all."""

    p_P: np.ndarray

    @property
    def size(self) -> int:
        return len(self.p_P)


class KnapsackGains(_RateGains):
    """ΔV(N) = (p^N(1−p) + (1−p)^N p) · p(1−p)², which falls for N ≥ 1 (Knapsack-RL, arXiv 2509.25849).

    V(N) is the chance of a group that is not dead, 1 − p^N − (1−p)^N, times the information weight p(1−p)². With r the larger and q the smaller of p and 1 − p it is r^N·q·(1 + (q/r)^(N−1)) times the weight. Every
    factor falls with N, also after rounding.
    """

    @cached_property
    def _logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P,) log of weight·q, of r and of q/r."""
        p = np.asarray(self.p_P, dtype=float)
        with np.errstate(divide="ignore"):
            log_larger, log_smaller = np.log(np.maximum(p, 1.0 - p)), np.log(np.minimum(p, 1.0 - p))
            weight = np.log(p) + 2.0 * np.log1p(-p)
        return weight + log_smaller, log_larger, log_smaller - log_larger

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        intercept_P, log_larger_P, ratio_P = self._logs
        with np.errstate(invalid="ignore"):
            tail = np.log1p(np.exp((budget - 1) * _column(ratio_P, budget)))
        tail = np.where(np.isnan(tail), 0.0, tail)  # (1 − 1)·(−inf) at p in {0, 1}, where the weight is 0
        return _column(intercept_P, budget) + budget * _column(log_larger_P, budget) + tail

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        # The log gain is a straight line plus a small convex tail. One Newton step from where the line meets the
        # threshold stops short of the crossing, by so little that the count is hardly ever one less.
        intercept_P, slope_P, ratio_P = self._logs_of_live
        start_P = np.clip((threshold - intercept_P) / slope_P, low, high)
        tail_P = np.exp((start_P - 1.0) * ratio_P)
        value_P = intercept_P - threshold + start_P * slope_P + np.log1p(tail_P)
        reach_P = start_P - value_P / (slope_P + ratio_P * tail_P / (1.0 + tail_P))
        return np.clip(np.floor(reach_P) + 1.0, low, high).astype(np.int64)

    @cached_property
    def _logs_of_live(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`_logs`, with a gain of e^(−10⁹) where a rollout is worth nothing."""
        intercept_P, log_larger_P, ratio_P = self._logs
        live_P = (intercept_P > -np.inf) & (log_larger_P < 0.0)
        return (
            np.where(live_P, intercept_P, -1e9),
            np.where(live_P, log_larger_P, -1.0),
            np.where(live_P, ratio_P, 0.0),
        )


class VarianceGains(_RateGains):
    """ΔV(B) = p(1−p)/(B(B+1)): how much a rollout lowers the variance p(1−p)/B of the group's mean reward."""

    @cached_property
    def _log_variance_P(self) -> np.ndarray:
        p = np.asarray(self.p_P, dtype=float)
        with np.errstate(divide="ignore"):
            return np.log(p * (1.0 - p))

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        return _column(self._log_variance_P, budget) - np.log(budget * (budget + 1.0))

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        # B(B + 1) ≤ p(1−p)·e^−threshold, solved for B.
        with np.errstate(over="ignore"):
            most_P = np.exp(self._log_variance_P - threshold)
        reach_P = np.floor(np.sqrt(0.25 + most_P) - 0.5) + 1.0
        return np.minimum(np.maximum(reach_P, low), high).astype(np.int64)
