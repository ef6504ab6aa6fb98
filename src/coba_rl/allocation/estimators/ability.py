"""Pass rates from what all prompts have in common and what each has of its own, filtered online with uncertainty.

Model: a share of the prompts is hopeless and never passes. The pass rate of any other prompt i is sigmoid(x_i). From
one step to the next the policy's ability moves all logits alike, x → x + a, and draws them together or apart,
x → x + b·(x − pivot), since hard prompts gain more than easy ones. Beyond that each wanders a little. A step's outcomes
first tell a and b, both expected to go on as they lately went, then each prompt's own x. How much likelier outcomes
were for the others than for a hopeless prompt says how likely it is one of them; without luck a single success says that
it is not. So a prompt that was not visited for long moves with the policy, and one never visited gets the pass rate of a
typical prompt.

Where rollouts pass by luck with chance g, hopeless prompts pass g of their rollouts and the others g + (1 − g)·sigmoid(x).
The filter compares those rates with outcomes. What it tells is without luck: budgets must not chase what nobody can learn.

Outcomes of a prompt that never or always passes do not tell how far its logit is from 0: without bounds such prompts
would drag everything along for ever. So logits are bounded; prompts near 0 or 1 have no say in what is common to all;
trends fade unless outcomes keep them up; and an outcome that nobody expected of a prompt widens its uncertainty until
it is no surprise any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from coba_rl.allocation.estimators.base import PassRateEstimator, Visits
from coba_rl.allocation.estimators.logits import (
    LARGEST_LOGIT,
    expected_rate,
    learnable,
    log_likelihood_ratio,
    mean_of_sigmoid,
    posterior_of_logit,
    sigmoid,
)
from coba_rl.allocation.prompt_table import Column, PromptId
from coba_rl.allocation.saved import saved_number, saved_numbers
from coba_rl.option_types import require

_LARGEST_MOVE = np.array([2.0, 0.2])  # a in logits, and b, in a step
_STRETCHES = (1e-3, 1e3)
_SPREADS = (0.005, 9.0)  # logits²
_WANDERS = (1e-4, 0.5)  # logits²
_WIDEST = 25.0  # logits², of a prompt that surprised
_LARGEST_EVIDENCE = 20.0  # of hope, log likelihood ratio
_HOPELESS_SHARES = (0.002, 0.95)
_SURPRISE = 3.0  # standard deviations
_LIVE = 0.02  # a pass rate this near to 0 or 1 says nothing of the others
_EDGE = 0.01  # outcomes hardly tell a pass rate this near to 0 or 1 from it
_SAVED = {
    "shift": (-math.inf, math.inf),
    "stretch": _STRETCHES,
    "centre": (-LARGEST_LOGIT, LARGEST_LOGIT),
    "spread": _SPREADS,
    "wander": _WANDERS,
    "hopeless_share": _HOPELESS_SHARES,
}
"""Numbers that a state holds, and the ends between which each lies."""


@dataclass(eq=False, kw_only=True)
class AbilityEstimator(PassRateEstimator):
    """Online filter of the common moves and of each prompt's logit; see the module.

    Estimates and intervals are of the pass rate that can be learned: what a rollout passes by knowing, sigmoid(x) or 0 for
    a hopeless prompt. With a `guess_rate` that is less than the share of rollouts that pass.

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

    guess_rate: float = 0.0
    """Chance g that a rollout passes by luck, whatever the prompt (multiple choice, a lenient verifier). It must be
    known: few successes of hard prompts look the same."""

    MOVE_VARIANCE = (0.01, 0.0004)
    """How far a step's a (logits) and b may be from their trends, squared."""
    TREND_WEIGHT = 0.1
    """Share of the newest move in the trend."""
    TREND_KEPT = 0.98
    """Share of the trend that is left after a step without news."""
    SPREAD_WEIGHT = 64.0
    """Prompts that the spread so far counts for, beside those of a step."""
    CENTRE_WEIGHT = 0.2
    """Share of the newest success rate in the pass rate of a typical prompt."""
    WANDER_WEIGHT = 0.2
    """How fast the wander follows the size of surprises (exponent)."""

    def validate(self) -> None:
        super().validate()
        require(0.0 <= self.guess_rate < 1.0, "guess_rate", self.guess_rate, "a chance in [0, 1)")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step = 0
        self._shift = 0.0
        self._stretch = 1.0
        self._centre = 0.0
        """Logit of a typical prompt: what is expected of one never visited."""
        self._spread = 4.0
        """Variance of logits over prompts, logits²."""
        self._wander = 0.02
        """Variance a logit at p = 1/2 gains in a step, logits²."""
        self._hopeless_share = 0.1
        """Share of the prompts that never pass."""
        self._trend = np.zeros(2)
        """Expected (a, b) of a step."""

    def columns(self) -> dict[str, Column]:
        # A prompt's logit now is shift + stretch · its column: so all of them can move at the cost of none.
        return {
            "logit": Column(0.0),
            "variance": Column(0.0, low=0.0),
            "step": Column(0.0, low=0.0),
            "evidence": Column(0.0, -_LARGEST_EVIDENCE, _LARGEST_EVIDENCE),
        }

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        return (1.0 - self._hopeless(rows)) * mean_of_sigmoid(*self._predict(rows))

    def interval(self, prompt_ids: Sequence[PromptId], level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        rows = self.table.rows(prompt_ids)
        mean, variance = self._predict(rows)
        reach = NormalDist().inv_cdf(0.5 + level / 2.0) * np.sqrt(variance)
        low, high = sigmoid(mean - reach), sigmoid(mean + reach)
        low[self._hopeless(rows) > (1.0 - level) / 2.0] = 0.0
        return np.where(low < _EDGE, 0.0, low), np.where(high > 1.0 - _EDGE, 1.0, high)

    def _hopeless(self, rows: np.ndarray) -> np.ndarray:
        """(P,) chance that the prompt is hopeless."""
        evidence = np.zeros(len(rows))
        evidence[rows >= 0] = self.table["evidence"][rows[rows >= 0]]
        return sigmoid(math.log(self._hopeless_share / (1.0 - self._hopeless_share)) - evidence)

    def _predict(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each prompt's logit as of now, if it is not hopeless."""
        mean, variance = np.full(len(rows), self._centre), np.full(len(rows), self._spread)
        seen = rows >= 0
        row = rows[seen]
        mean[seen] = np.clip(
            self._shift + self._stretch * self.table["logit"][row], -LARGEST_LOGIT, LARGEST_LOGIT
        )
        p = sigmoid(mean[seen])
        gained = self._wander * (self._step - self.table["step"][row]) * 2.0 * np.sqrt(p * (1.0 - p))
        narrowed = self._stretch**2 * self.table["variance"][row]
        variance[seen] = np.clip(narrowed + gained, _SPREADS[0], max(2.0 * self._spread, _SPREADS[0]))
        return mean, variance

    def update(self, visits: Visits) -> None:
        visits = visits.with_rest
        if self._step == 0:
            rate = (visits.successes_P.sum() + 0.5) / (visits.attempts_P.sum() + 1.0)
            self._centre = _centre(float(learnable(rate, self.guess_rate)), self._spread)
        self._step += 1
        rows = self.table.rows(visits.prompt_ids)
        self._move_all(*self._predict(rows), 1.0 - self._hopeless(rows), visits)
        mean, variance = self._predict(rows)
        widened = self._learn_wander(mean, variance, visits, rows >= 0)
        outcomes = visits.successes_P, visits.attempts_P, self.guess_rate
        posterior, narrowed = posterior_of_logit(mean, widened, *outcomes)
        rows = self.table.rows(visits.prompt_ids, create=True)
        evidence = self.table["evidence"][rows] + log_likelihood_ratio(mean, variance, *outcomes)
        self.table["evidence"][rows] = np.clip(evidence, -_LARGEST_EVIDENCE, _LARGEST_EVIDENCE)
        self._learn_population(posterior, narrowed, 1.0 - self._hopeless(rows), visits)
        self.table["logit"][rows] = (posterior - self._shift) / self._stretch
        self.table["variance"][rows] = narrowed / self._stretch**2
        self.table["step"][rows] = self._step

    def _move_all(self, mean: np.ndarray, variance: np.ndarray, hope: np.ndarray, visits: Visits) -> None:
        """Move every logit as the step's outcomes say all have moved.

        Args:
            mean, variance: (P,) of each visited prompt's logit, as expected before the step.
            hope: (P,) chance that it is not hopeless.
            visits: The outcomes.
        """
        live = np.abs(hope * mean_of_sigmoid(mean, variance) - 0.5) < 0.5 - _LIVE
        pivot = float(mean[live].mean()) if live.any() else self._centre
        direction = np.stack([np.ones(int(live.sum())), mean[live] - pivot])
        rate = visits.successes_P[live] / visits.attempts_P[live]
        a, b = self._common_move(
            mean[live], variance[live], direction, rate, visits.attempts_P[live], hope[live]
        )
        stretch = float(np.clip(self._stretch * (1.0 + b), *_STRETCHES))
        b = stretch / self._stretch - 1.0
        self._stretch = stretch
        self._shift += float(a + b * (self._shift - pivot))
        self._spread = float(np.clip(self._spread * (1.0 + b) ** 2, *_SPREADS))
        self._centre = float(
            np.clip(self._centre + a + b * (self._centre - pivot), -LARGEST_LOGIT, LARGEST_LOGIT)
        )

    def _common_move(
        self,
        mean: np.ndarray,
        variance: np.ndarray,
        direction: np.ndarray,
        rate: np.ndarray,
        attempts: np.ndarray,
        hope: np.ndarray,
    ) -> np.ndarray:
        """Most likely (a, b) given outcomes of (L,) live prompts, by iterated weighted least squares.

        Args:
            mean, variance: (L,) of each prompt's logit, as expected before the step.
            direction: (2, L) how each prompt's logit answers to a and to b.
            rate, attempts: (L,) share of rollouts that passed, and their number.
            hope: (L,) weight of each prompt.
        """
        move, precision = self._trend.copy(), 1.0 / np.array(self.MOVE_VARIANCE)
        for _ in range(4):
            p, slope, noise = expected_rate(mean + move @ direction, variance, attempts, self.guess_rate)
            gradient = (direction * (hope * slope * (rate - p) / noise)).sum(axis=1) - precision * (
                move - self._trend
            )
            weighted = direction * (hope * slope**2 / noise)
            # Summed by NumPy, not BLAS: the same bits whatever the number of threads.
            information = (weighted[:, None] * direction).sum(axis=2) + np.diag(precision)
            move = np.clip(move + np.linalg.solve(information, gradient), -_LARGEST_MOVE, _LARGEST_MOVE)
        if self._step > 1:
            self._trend = self.TREND_KEPT * (self._trend + self.TREND_WEIGHT * (move - self._trend))
        return move

    def _learn_wander(
        self, mean: np.ndarray, variance: np.ndarray, visits: Visits, seen: np.ndarray
    ) -> np.ndarray:
        """Raise or lower the wander until surprises are as large as predicted.

        Returns:
            (P,) variances, widened where a prompt's outcome is a surprise.
        """
        p, _, noise = expected_rate(mean, variance, visits.attempts_P, self.guess_rate)
        surprise = (visits.successes_P / visits.attempts_P - p) ** 2
        judged = seen & (np.abs(learnable(p, self.guess_rate) - 0.5) < 0.5 - _LIVE)
        if judged.sum() >= 8:
            ratio = float(surprise[judged].sum() / noise[judged].sum())
            self._wander = float(np.clip(self._wander * ratio**self.WANDER_WEIGHT, *_WANDERS))
        return np.clip(variance * surprise / (noise * _SURPRISE**2), variance, _WIDEST)

    def _learn_population(
        self, posterior: np.ndarray, narrowed: np.ndarray, hope: np.ndarray, visits: Visits
    ) -> None:
        """Move what is expected of a prompt never visited towards what the step's prompts show."""
        expected = float(mean_of_sigmoid(np.array(self._centre), np.array(self._spread)))
        weight = len(posterior) / (len(posterior) + self.SPREAD_WEIGHT)
        share = self._hopeless_share + weight * (1.0 - hope.mean() - self._hopeless_share)
        self._hopeless_share = float(np.clip(share, *_HOPELESS_SHARES))
        found = float(np.average((posterior - self._centre) ** 2 + narrowed, weights=hope))
        passed = float(np.average(visits.successes_P / visits.attempts_P, weights=hope))
        rate = learnable(passed, self.guess_rate)
        self._spread = float(np.clip(self._spread + weight * (found - self._spread), *_SPREADS))
        self._centre = _centre(expected + self.CENTRE_WEIGHT * (rate - expected), self._spread)

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, f"_{name}") for name in _SAVED}
        return {"step": self._step, **numbers, "trend": self._trend.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step, trend = int(saved_number(state, "step", low=0)), saved_numbers(state, "trend", length=2)
        numbers = {f"_{name}": saved_number(state, name, *bounds) for name, bounds in _SAVED.items()}
        self.__dict__.update(numbers, _step=step, _trend=trend)


def _centre(rate: float, spread: float) -> float:
    """Mean of normal logits of variance `spread` whose sigmoids have the mean `rate`."""
    rate = min(max(float(rate), 1e-4), 1.0 - 1e-4)
    centre = math.log(rate / (1.0 - rate)) * math.sqrt(1.0 + math.pi * spread / 8.0)
    return min(max(centre, -LARGEST_LOGIT), LARGEST_LOGIT)
