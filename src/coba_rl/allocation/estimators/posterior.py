"""Pass rates as the mean of a Beta posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.estimators.base import COUNT, PassRateEstimator, Visits
from coba_rl.allocation.prompt_table import Column, PromptId
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class PosteriorEstimator(PassRateEstimator):
    """Mean of a Beta posterior whose past counts fade at every visit.

    p = (s + a·w)/(n + (a + b)·w) with s ← decay·s + successes and n ← decay·n + attempts. The prior weight w
    is 1, and 0.1 for a prompt that has been tried but never solved: a full prior would keep promising
    something where nothing was ever found.

    Example:
        >>> estimator = PosteriorEstimator(prior=(1.0, 1.0))
        >>> estimator.update(Visits(["a"], np.array([3.0]), np.array([4.0])))
        >>> estimator.estimate(["a", "b"]).round(3).tolist()
        [0.667, 0.5]
    """

    prior: tuple[float, float] = (0.5, 0.5)
    """(a, b) of the Beta prior of a pass rate, both > 0; a prompt never visited has p = a/(a + b)."""
    decay: float = 0.5
    """Share of a prompt's old counts that survives a visit, in [0, 1]."""

    NEVER_SOLVED_WEIGHT: ClassVar[float] = 0.1

    def validate(self) -> None:
        super().validate()
        require(min(self.prior) > 0, "prior", self.prior, "two positive numbers (a, b) of a Beta prior")
        expected = "a share in [0, 1] of the old counts to keep at a visit"
        require(0 <= self.decay <= 1, "decay", self.decay, expected)

    def columns(self) -> dict[str, Column]:
        return {"successes": COUNT, "attempts": COUNT}

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        """Of visited prompts, as of now."""
        successes, attempts = self.table["successes"][rows], self.table["attempts"][rows]
        weight = np.where((successes == 0.0) & (attempts > 0.0), self.NEVER_SOLVED_WEIGHT, 1.0)
        a, b = self.prior
        return (successes + a * weight) / (attempts + (a + b) * weight)

    def _unseen_mean(self) -> float:
        a, b = self.prior
        return a / (a + b)

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        estimate = np.full(len(rows), self._unseen_mean())
        estimate[rows >= 0] = self._mean(rows[rows >= 0])
        return estimate

    def update(self, visits: Visits) -> None:
        visits = visits.with_rest
        rows = self.table.rows(visits.prompt_ids, create=True)
        self.table["successes"][rows] = self.decay * self.table["successes"][rows] + visits.successes_P
        self.table["attempts"][rows] = self.decay * self.table["attempts"][rows] + visits.attempts_P
