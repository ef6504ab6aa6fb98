"""Pass rates that move with the overall success rate between visits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coba_rl.allocation.capability import Capability
from coba_rl.allocation.estimators.base import Visits
from coba_rl.allocation.estimators.logits import logit, sigmoid
from coba_rl.allocation.estimators.posterior import PosteriorEstimator
from coba_rl.allocation.prompt_table import Column


@dataclass(eq=False, kw_only=True)
class DriftEstimator(PosteriorEstimator):
    """A Beta posterior moved along with the policy.

    The logit of each stored estimate is shifted by how the logit of the global success rate moved since that
    prompt's last visit: p_now = sigmoid(logit p_then + logit S_now − logit S_then). S is the mean over the
    last 8 steps, since one batch says little about the whole. A visit first moves the old counts, then adds.
    A prompt never visited has p = S_now, or a/(a + b) before any step.

    Example:
        >>> estimator = DriftEstimator()
        >>> estimator.update(Visits(["a"], np.array([1.0]), np.array([4.0])))
        >>> before = estimator.estimate(["a"])[0]
        >>> estimator.update(Visits(["b"], np.array([4.0]), np.array([4.0])))
        >>> bool(estimator.estimate(["a"])[0] > before)
        True
    """

    SMOOTHING_STEPS: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recent = Capability(self.SMOOTHING_STEPS)

    def columns(self) -> dict[str, Column]:
        return {**super().columns(), "global_logit": Column(math.nan)}

    def _global_logit(self) -> float:
        # Half a success and half a failure in a thousand keep the shift finite when all or nothing passes.
        return float(logit(np.array((1.0 - self._recent.failure_rate) * 0.999 + 0.0005)))

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        shift = self._global_logit() - self.table["global_logit"][rows]
        return sigmoid(logit(super()._mean(rows)) + shift)

    def _unseen_mean(self) -> float:
        return float(sigmoid(self._global_logit())) if self._recent.started else super()._unseen_mean()

    def update(self, visits: Visits) -> None:
        self._recent.update(1.0 - visits.success_rate)
        rows = self.table.rows(visits.with_rest.prompt_ids, create=True)
        solved = self.table["successes"][rows] > 0.0
        old = rows[solved]  # counts of a prompt never solved stay 0: there is no estimate to move
        self.table["successes"][old] = self.table["attempts"][old] * self._mean(old)
        super().update(visits)
        self.table["global_logit"][rows] = self._global_logit()

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self._recent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent.load_state_dict(state["recent"])
