"""Estimates of each prompt's pass rate from what its rollouts scored.

A *visit* is one observed step in which a prompt had rollouts that could be judged. Estimators see visits and
nothing else; between visits the policy moves on, so an estimate is about an epoch old unless it is corrected.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coba_rl.allocation.capability import Capability
from coba_rl.allocation.prompt_table import Column, PromptId, PromptTable
from coba_rl.errors import OptionError

_TINY = 1e-9  # keeps logits finite
_COUNT = Column(0.0, low=0.0)


@dataclass(frozen=True, eq=False)
class Visits:
    """What one step's rollouts scored, one entry a distinct prompt."""

    prompt_ids: list[PromptId]
    successes_P: np.ndarray
    """Sum of success over the judged rollouts, ≥ 0."""
    attempts_P: np.ndarray
    """Number of judged rollouts, ≥ 1."""

    @property
    def success_rate(self) -> float:
        """Mean over prompts of successes/attempts: S of Eq. 4."""
        return float(np.mean(self.successes_P / self.attempts_P))


class PassRateEstimator(ABC):
    """Turns visits into pass rates. `estimate` before a step, `update` after it.

    Args:
        columns: What is kept of each prompt, by name.
    """

    def __init__(self, columns: dict[str, Column]) -> None:
        self.table = PromptTable(columns)

    @abstractmethod
    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        """(P,) pass rates in [0, 1] as of now; NaN where there is nothing to go by."""

    @abstractmethod
    def update(self, visits: Visits) -> None:
        """Take in one step's visits."""

    def seen(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        """(P,) bool: whether the prompt has ever been visited."""
        return self.table.rows(prompt_ids) >= 0

    def interval(
        self, prompt_ids: Sequence[PromptId], level: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(P,) lower and (P,) upper ends of the central interval that holds the pass rate with probability `level`.

        None when the estimator does not say how sure it is.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of everything but the table."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  (nothing by default)
        """Restore what `state_dict` returned."""


class WindowEstimator(PassRateEstimator):
    """Successes over attempts of the last k visits, as in the paper; NaN for a prompt never visited.

    Args:
        visits: k ≥ 1. 1 is "the previous visit", about one epoch old.

    Example:
        >>> estimator = WindowEstimator(visits=2)
        >>> for successes in (0.0, 1.0, 4.0):
        ...     estimator.update(Visits(["a"], np.array([successes]), np.array([4.0])))
        >>> estimator.estimate(["a", "b"]).tolist()
        [0.625, nan]
    """

    def __init__(self, visits: int = 1) -> None:
        if visits < 1:
            raise OptionError(f"visits={visits!r}: expected at least 1 visit to average over.")
        self._visits = visits
        slots = {f"{kind}_{slot}": _COUNT for kind in ("successes", "attempts") for slot in range(visits)}
        super().__init__({**slots, "num_visits": _COUNT})

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        seen = rows >= 0
        successes, attempts = np.zeros(len(rows)), np.zeros(len(rows))
        for slot in range(self._visits):
            successes[seen] += self.table[f"successes_{slot}"][rows[seen]]
            attempts[seen] += self.table[f"attempts_{slot}"][rows[seen]]
        return np.divide(successes, attempts, out=np.full(len(rows), np.nan), where=attempts > 0)

    def update(self, visits: Visits) -> None:
        rows = self.table.rows(visits.prompt_ids, create=True)
        turn = self.table["num_visits"][rows] % self._visits
        for slot in range(self._visits):
            now = turn == slot
            self.table[f"successes_{slot}"][rows[now]] = visits.successes_P[now]
            self.table[f"attempts_{slot}"][rows[now]] = visits.attempts_P[now]
        self.table["num_visits"][rows] += 1.0


class PosteriorEstimator(PassRateEstimator):
    """Mean of a Beta posterior whose past counts fade at every visit.

    p = (s + a·w)/(n + (a + b)·w) with s ← decay·s + successes and n ← decay·n + attempts. The prior weight w
    is 1, and 0.1 for a prompt that has been tried but never solved: a full prior would keep promising
    something where nothing was ever found.

    Args:
        prior: (a, b) of the Beta prior, both > 0. A prompt never visited has p = a/(a + b).
        decay: Share of the old counts that survives a visit, in [0, 1].

    Example:
        >>> estimator = PosteriorEstimator(prior=(1.0, 1.0))
        >>> estimator.update(Visits(["a"], np.array([3.0]), np.array([4.0])))
        >>> estimator.estimate(["a", "b"]).round(3).tolist()
        [0.667, 0.5]
    """

    NEVER_SOLVED_WEIGHT = 0.1

    def __init__(self, prior: tuple[float, float] = (0.5, 0.5), decay: float = 0.5) -> None:
        self._a, self._b = _check_prior(prior)
        if not 0.0 <= decay <= 1.0:
            raise OptionError(
                f"decay={decay!r}: expected a share in [0, 1] of the old counts to keep at a visit."
            )
        self._decay = decay
        super().__init__({"successes": _COUNT, "attempts": _COUNT, **self._extra_columns()})

    def _extra_columns(self) -> dict[str, Column]:
        return {}

    def _mean(self, rows: np.ndarray) -> np.ndarray:
        successes, attempts = self.table["successes"][rows], self.table["attempts"][rows]
        weight = np.where((successes == 0.0) & (attempts > 0.0), self.NEVER_SOLVED_WEIGHT, 1.0)
        return (successes + self._a * weight) / (attempts + (self._a + self._b) * weight)

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        estimate = np.full(len(rows), self._a / (self._a + self._b))
        estimate[rows >= 0] = self._mean(rows[rows >= 0])
        return estimate

    def update(self, visits: Visits) -> None:
        rows = self.table.rows(visits.prompt_ids, create=True)
        self.table["successes"][rows] = self._decay * self.table["successes"][rows] + visits.successes_P
        self.table["attempts"][rows] = self._decay * self.table["attempts"][rows] + visits.attempts_P


class DriftEstimator(PosteriorEstimator):
    """A Beta posterior moved along with the policy.

    The logit of each stored estimate is shifted by how the logit of the global success rate moved since that
    prompt's last visit: p_now = sigmoid(logit p_then + logit S_now − logit S_then). S is the mean over the
    last 8 steps, since one batch says little about the whole. A visit first moves the old counts, then adds.
    A prompt never visited has p = S_now, or a/(a + b) before any step.

    Args:
        prior, decay: As for `PosteriorEstimator`.

    Example:
        >>> estimator = DriftEstimator()
        >>> estimator.update(Visits(["a"], np.array([1.0]), np.array([4.0])))
        >>> before = estimator.estimate(["a"])[0]
        >>> estimator.update(Visits(["b"], np.array([4.0]), np.array([4.0])))
        >>> bool(estimator.estimate(["a"])[0] > before)
        True
    """

    SMOOTHING_STEPS = 8

    def __init__(self, prior: tuple[float, float] = (0.5, 0.5), decay: float = 0.5) -> None:
        super().__init__(prior, decay)
        self._recent = Capability(self.SMOOTHING_STEPS)

    def _extra_columns(self) -> dict[str, Column]:
        return {"global_logit": Column(math.nan)}

    def _global_logit(self) -> float:
        # Half a success and half a failure in a thousand keep the shift finite when all or nothing passes.
        return float(logit(np.array((1.0 - self._recent.failure_rate) * 0.999 + 0.0005)))

    def _moved_mean(self, rows: np.ndarray) -> np.ndarray:
        shift = self._global_logit() - self.table["global_logit"][rows]
        return sigmoid(logit(self._mean(rows)) + shift)

    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        rows = self.table.rows(prompt_ids)
        unseen = sigmoid(self._global_logit()) if self._recent.started else self._a / (self._a + self._b)
        estimate = np.full(len(rows), unseen)
        estimate[rows >= 0] = self._moved_mean(rows[rows >= 0])
        return estimate

    def update(self, visits: Visits) -> None:
        self._recent.update(1.0 - visits.success_rate)
        rows = self.table.rows(visits.prompt_ids, create=True)
        attempts = self.table["attempts"][rows]
        solved = self.table["successes"][rows] > 0.0
        old = rows[solved]  # counts of a prompt never solved stay 0: there is no estimate to move
        self.table["successes"][old] = self.table["attempts"][old] * self._moved_mean(old)
        self.table["successes"][rows] = self._decay * self.table["successes"][rows] + visits.successes_P
        self.table["attempts"][rows] = self._decay * attempts + visits.attempts_P
        self.table["global_logit"][rows] = self._global_logit()

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self._recent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent.load_state_dict(state["recent"])


def _check_prior(prior: Any) -> tuple[float, float]:
    try:
        a, b = (float(value) for value in prior)
    except (TypeError, ValueError):
        raise OptionError(
            f"prior={prior!r}: expected two numbers (a, b) of a Beta prior, e.g. (0.5, 0.5)."
        ) from None
    if not (a > 0 and b > 0 and math.isfinite(a + b)):
        raise OptionError(f"prior={prior!r}: expected two positive numbers (a, b) of a Beta prior.")
    return a, b


def logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, _TINY, 1.0 - _TINY)
    return np.log(p) - np.log1p(-p)


def sigmoid(x: np.ndarray | float) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))
