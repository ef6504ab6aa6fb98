"""Pass rates as the paper takes them: what a prompt scored when it was last visited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coba_rl.allocation.estimators.base import COUNT, PassRateEstimator, Visits
from coba_rl.allocation.prompt_table import Column, PromptId
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class WindowEstimator(PassRateEstimator):
    """Successes over attempts of a prompt's last visits, as in the paper; NaN for a prompt never visited.

    Example:
        >>> estimator = WindowEstimator(visits=2)
        >>> for successes in (0.0, 1.0, 4.0):
        ...     estimator.update(Visits(["a"], np.array([successes]), np.array([4.0])))
        >>> estimator.estimate(["a", "b"]).tolist()
        [0.625, nan]
    """

    visits: int = 1
    """Last visits of a prompt to average over; 1 is the previous one, about one epoch old."""

    def validate(self) -> None:
        super().validate()
        require(self.visits >= 1, "visits", self.visits, "at least 1 visit to average over")

    def columns(self) -> dict[str, Column]:
        slots = {f"{kind}_{slot}": COUNT for kind in ("successes", "attempts") for slot in range(self.visits)}
        return {**slots, "num_visits": COUNT}

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        seen = rows >= 0
        successes, attempts = np.zeros(len(rows)), np.zeros(len(rows))
        for slot in range(self.visits):
            successes[seen] += self.table[f"successes_{slot}"][rows[seen]]
            attempts[seen] += self.table[f"attempts_{slot}"][rows[seen]]
        return np.divide(successes, attempts, out=np.full(len(rows), np.nan), where=attempts > 0)

    def update(self, visits: Visits) -> None:
        rows = self.table.rows(visits.prompt_ids, create=True)
        turn = self.table["num_visits"][rows] % self.visits
        for slot in range(self.visits):
            now = turn == slot
            self.table[f"successes_{slot}"][rows[now]] = visits.successes_P[now]
            self.table[f"attempts_{slot}"][rows[now]] = visits.attempts_P[now]
        self.table["num_visits"][rows] += 1.0
