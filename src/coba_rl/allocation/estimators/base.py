"""What every estimator of pass rates is.

A *visit* is one observed step in which a prompt had rollouts that could be judged. Estimators see visits and
nothing else; between visits the policy moves on, so an estimate is about an epoch old unless it is corrected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coba_rl.allocation.prompt_table import Column, PromptId, PromptTable
from coba_rl.option_types import WithOptions

COUNT = Column(0.0, low=0.0)
"""A column of numbers that start at 0 and are never negative."""


@dataclass(frozen=True, eq=False)
class Visits:
    """What one step's rollouts scored, one entry a distinct prompt.

    Where budgets came in two rounds, these are the rollouts of the pilot. How many followed depends on what the pilot
    scored, so the share of all that passed is not the pass rate on average; that of the pilot is. A likelihood does not
    depend on why there are no more rollouts: an estimator that works with one takes `with_rest`.
    """

    prompt_ids: list[PromptId]
    successes_P: np.ndarray
    """Sum of success over the judged rollouts, ≥ 0."""
    attempts_P: np.ndarray
    """Number of judged rollouts, ≥ 1."""
    whole: Visits | None = None
    """Of both rounds together, the same prompts; None where there was one round."""

    @property
    def with_rest(self) -> Visits:
        """Of all rollouts of the step."""
        return self if self.whole is None else self.whole

    @property
    def success_rate(self) -> float:
        """Mean over prompts of successes/attempts: S of Eq. 4."""
        return float(np.mean(self.successes_P / self.attempts_P))


@dataclass(eq=False, kw_only=True)
class PassRateEstimator(WithOptions, ABC):
    """Turns visits into pass rates: `estimate` before a step, `update` after it. One object serves one strategy.

    To write an estimator, subclass this as a dataclass, say in `columns` what is kept of each prompt, and test it with
    `coba_rl.testing.EstimatorConformance`. Every field is an option. What it remembers goes into `table`, or through
    `state_dict` and `load_state_dict`, and nowhere else.
    """

    def __post_init__(self) -> None:
        self.validate()
        self.table = PromptTable(self.columns())
        self.in_use = False
        """Whether a strategy has it."""

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """What is kept of each prompt, by name. It may depend on the options."""

    @abstractmethod
    def estimate(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        """(P,) pass rates in [0, 1] as of now; NaN where there is nothing to go by."""

    @abstractmethod
    def update(self, visits: Visits) -> None:
        """Take in one step's visits."""

    def estimate_given(self, prompt_ids: Sequence[PromptId], visits: Visits) -> np.ndarray:
        """(P,) what `estimate` would be after `update(visits)`, which leaves no trace.

        Both see a table that holds these prompts alone, so that this costs as much as the batch: an estimator that looks
        at others must write its own.
        """
        table, state = self.table, self.state_dict()
        self.table = table.excerpt([*prompt_ids, *visits.prompt_ids])
        try:
            self.update(visits)
            return self.estimate(prompt_ids)
        finally:
            self.table = table
            self.load_state_dict(state)

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
