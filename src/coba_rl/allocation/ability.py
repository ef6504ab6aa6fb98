"""Pass rates from one global ability and one difficulty a prompt, filtered online with uncertainty.

Model: logit p_i(t) = ability(t) − scale(t) · difficulty_i(t). The ability is the paper's global capability on
the logit scale. The scale says how far prompts are apart: hard prompts gain more logits than easy ones, so it
shrinks as the policy learns. Difficulties are normal with a spread learned from all prompts seen, and wander a
little. A step's outcomes first move ability and scale (what all its prompts have in common), both expected to go
on as they lately went, then each prompt's difficulty (what is left). So a prompt that was not visited for long
moves with the policy, and one never visited gets the pass rate of a typical prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from coba_rl.allocation.pass_rates import PassRateEstimator, Visits, sigmoid
from coba_rl.allocation.prompt_table import PromptId

_NEWTON_STEPS = 8
_LARGEST_STEP = 2.0  # logits; keeps the first Newton steps of 0/n outcomes in range
_LARGEST_LOGIT = 12.0
_LARGEST_MOVE = np.array([2.0, 0.2])  # of ability, logits, and of the logarithm of the scale, in a step


class AbilityEstimator(PassRateEstimator):
    """Online filter of ability and difficulties; see the module.

    Example:
        >>> estimator = AbilityEstimator()
        >>> estimator.update(Visits(["easy", "hard"], np.array([7.0, 1.0]), np.array([8.0, 8.0])))
        >>> easy, unseen, hard = estimator.estimate(["easy", "unseen", "hard"])
        >>> bool(easy > unseen > hard)
        True
        >>> estimator.update(Visits(["hard"], np.array([8.0]), np.array([8.0])))
        >>> bool(estimator.estimate(["easy"])[0] > easy)  # the policy got better
        True
    """

    MOVE_VARIANCE = (0.005, 0.0004)
    """How far a step's move of ability (logits) and of the logarithm of the scale may be from the trend, squared."""
    TREND_WEIGHT = 0.1
    """Share of the newest move in the trend."""
    SPREAD_WEIGHT = 200.0
    """Prompts that the initial guess of the spread counts for."""

    def __init__(self) -> None:
        super().__init__({"offset": 0.0, "variance": 0.0, "step": 0.0})
        self._step = 0
        self._ability = 0.0
        self._scale = 1.0
        self._trend = np.zeros(2)
        """Expected move of (ability, logarithm of the scale) in a step."""
        self._started = False
        self._spread = 4.0
        """Variance of the difficulties, logits²."""
        self._wander = 0.02
        """Variance a difficulty gains in a step, logits²."""

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        mean, variance = self._predict(self.table.rows(prompt_ids))
        return _mean_of_sigmoid(mean, variance)

    def interval(self, prompt_ids: Sequence[PromptId], level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self._predict(self.table.rows(prompt_ids))
        reach = NormalDist().inv_cdf(0.5 + level / 2.0) * np.sqrt(variance)
        return sigmoid(mean - reach), sigmoid(mean + reach)

    def _predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each prompt's logit, as of now."""
        mean = np.full(len(rows), self._ability)
        spread = self._spread * self._scale**2
        variance = np.full(len(rows), spread)
        seen = rows >= 0
        age = self._step - self.table["step"][rows[seen]]
        mean[seen] += self._scale * self.table["offset"][rows[seen]]
        narrowed = self._scale**2 * self.table["variance"][rows[seen]]
        variance[seen] = np.minimum(narrowed + self._wander * age, 2.0 * spread)
        return mean, variance

    def update(self, visits: Visits) -> None:
        self._step += 1
        rows = self.table.rows(visits.prompt_ids)
        new = rows < 0
        mean, variance = self._predict(rows)
        if not self._started:
            rate = min(max(visits.success_rate, 0.005), 0.995)
            # A spread of σ² pulls the mean of sigmoids towards 1/2: undo that for the starting point.
            self._ability = math.log(rate / (1.0 - rate)) * math.sqrt(1.0 + math.pi * self._spread / 8.0)
            self._started = True
            mean = np.full(len(rows), self._ability)
        direction = np.stack([np.ones(len(rows)), mean - self._ability])
        move = self._common_move(mean, variance, direction, visits)
        mean = mean + move @ direction
        posterior, narrowed = _posterior(mean, variance, visits.successes_P, visits.attempts_P)
        self._learn_wander(mean, variance, visits, new)
        self._ability += move[0]
        self._scale *= 1.0 + move[1]
        rows = self.table.rows(visits.prompt_ids, create=True)
        self.table["offset"][rows] = (posterior - self._ability) / self._scale
        self.table["variance"][rows] = narrowed / self._scale**2
        self.table["step"][rows] = self._step
        self._learn_spread(rows)

    def _common_move(
        self, mean: np.ndarray, variance: np.ndarray, direction: np.ndarray, visits: Visits
    ) -> np.ndarray:
        """Most likely move of (ability, log scale) given the step's outcomes (iterated weighted least squares).

        Args:
            mean, variance: (P,) of each prompt's logit, as expected before the step.
            direction: (2, P) how each prompt's logit answers to each move.
            visits: The outcomes.
        """
        move, precision = self._trend.copy(), 1.0 / np.array(self.MOVE_VARIANCE)
        rate = visits.successes_P / visits.attempts_P
        for _ in range(4):
            flat = 1.0 / np.sqrt(1.0 + np.pi * variance / 8.0)
            p = sigmoid((mean + move @ direction) * flat)
            slope = np.maximum(p * (1.0 - p), 1e-6) * flat
            noise = p * (1.0 - p) / visits.attempts_P + slope**2 * variance + 1e-6
            gradient = (direction * (slope * (rate - p) / noise)).sum(axis=1) - precision * (
                move - self._trend
            )
            weighted = direction * (slope**2 / noise)
            # Summed by NumPy, not BLAS: the same bits whatever the number of threads.
            information = (weighted[:, None] * direction).sum(axis=2) + np.diag(precision)
            move = np.clip(move + np.linalg.solve(information, gradient), -_LARGEST_MOVE, _LARGEST_MOVE)
        if self._step > 1:
            self._trend += self.TREND_WEIGHT * (move - self._trend)
        return move

    def _learn_wander(self, mean: np.ndarray, variance: np.ndarray, visits: Visits, new: np.ndarray) -> None:
        """Raise or lower the wander until surprises are as large as predicted."""
        old = ~new
        if old.sum() < 8:
            return
        flat = 1.0 / np.sqrt(1.0 + np.pi * variance[old] / 8.0)
        p = sigmoid(mean[old] * flat)
        slope = p * (1.0 - p) * flat
        expected = p * (1.0 - p) / visits.attempts_P[old] + slope**2 * variance[old]
        surprise = (visits.successes_P[old] / visits.attempts_P[old] - p) ** 2
        ratio = float(surprise.sum() / max(expected.sum(), 1e-9))
        self._wander = float(np.clip(self._wander * ratio**0.1, 1e-4, 0.5))

    def _learn_spread(self, rows: np.ndarray) -> None:
        """Move the spread of difficulties, and the ability's zero, towards what the step's prompts show."""
        offset, variance = self.table["offset"][rows], self.table["variance"][rows]
        weight = len(rows) / (len(rows) + self.SPREAD_WEIGHT)
        self._spread += weight * (float(np.mean(offset**2 + variance)) - self._spread)

    def state_dict(self) -> dict[str, Any]:
        filtered = {
            "step": self._step,
            "ability": self._ability,
            "scale": self._scale,
            "trend": self._trend.tolist(),
            "started": self._started,
            "spread": self._spread,
            "wander": self._wander,
        }
        return {"filter": filtered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        filtered = state["filter"]
        self._step, self._started = int(filtered["step"]), bool(filtered["started"])
        self._ability, self._scale, self._spread, self._wander = (
            float(filtered[name]) for name in ("ability", "scale", "spread", "wander")
        )
        self._trend = np.array(filtered["trend"], dtype=float)


def _mean_of_sigmoid(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E[sigmoid(x)] for x normal, by MacKay's probit approximation."""
    return sigmoid(mean / np.sqrt(1.0 + np.pi * variance / 8.0))


def _posterior(
    mean: np.ndarray, variance: np.ndarray, successes: np.ndarray, attempts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Laplace approximation of a normal prior of a logit times a binomial likelihood."""
    x = mean.copy()
    for _ in range(_NEWTON_STEPS):
        p = sigmoid(x)
        gradient = successes - attempts * p - (x - mean) / variance
        curvature = attempts * p * (1.0 - p) + 1.0 / variance
        x = np.clip(
            x + np.clip(gradient / curvature, -_LARGEST_STEP, _LARGEST_STEP), -_LARGEST_LOGIT, _LARGEST_LOGIT
        )
    p = sigmoid(x)
    return x, 1.0 / (attempts * p * (1.0 - p) + 1.0 / variance)
