"""`TokenLimit`: what limits a step in the budget unit `tokens`."""

from __future__ import annotations

from typing import Any

import numpy as np

from coba_rl.allocation.checks import check_unit_of_tokens
from coba_rl.allocation.lengths import LengthModel
from coba_rl.allocation.outcomes import Outcomes
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.allocation.strategies import Strategy
from coba_rl.allocation.token_solver import check_tokens


class TokenLimit:
    """Expected tokens of a batch, and budgets that keep to a limit of them.

    Args:
        strategy: Whose pass rates and budgets they are.
        unit: Of the budgets. In `rollouts` nothing is limited, and no length is remembered.

    Attributes:
        lengths: What past rollouts say; replaced when a state is loaded.
    """

    def __init__(self, strategy: Strategy, unit: str) -> None:
        self._strategy, self._unit = strategy, unit
        self.lengths = LengthModel()

    @property
    def is_on(self) -> bool:
        """Whether tokens are limited."""
        return self._unit == "tokens"

    def cost(self, ids: list[PromptId], p_P: np.ndarray) -> np.ndarray:
        """(P,) expected tokens of a rollout, 1 each before a length is known; an unknown pass rate is the policy's."""
        typical = 1.0 - self._strategy.capability.failure_rate
        return self.lengths.cost(ids, np.where(np.isnan(p_P), typical, p_P))

    def check(self, ids: list[PromptId], p_P: np.ndarray, total: Any, tokens: float, low: int) -> int:
        """Whether a step can be given tokens in place of a total; how many rollouts of mean cost that is.

        Raises:
            TypeError, OptionError, InfeasibleBudgetError: As `BudgetAllocator.allocate`.
        """
        check_unit_of_tokens(total, self._unit, self.lengths.started)
        cost_P = self.cost(ids, p_P)
        check_tokens(cost_P, tokens, low)
        return int(tokens / max(float(cost_P.mean()), 1.0)) if len(ids) else 0

    def allocate(
        self, ids: list[PromptId], p_P: np.ndarray, total: int, tokens: float | None, low: int, high: int
    ) -> np.ndarray:
        """(P,) budgets of the strategy.

        Args:
            ids: The prompts.
            p_P: Their pass rates, NaN where unknown.
            total: Rollouts of the step, unless there are `tokens`.
            tokens: Most expected tokens, but at least those of the fewest rollouts; None: those of even budgets.
            low: Fewest rollouts of a prompt.
            high: Most rollouts of a prompt.
        """
        if not self.is_on:
            return self._strategy.allocate(p_P, total, low, high)
        cost_P = self.cost(ids, p_P)
        if tokens is None:
            return self._strategy.allocate_within(p_P, cost_P, total, low, high)
        return self._strategy.allocate_tokens(p_P, cost_P, max(tokens, low * float(cost_P.sum())), low, high)

    def observe(self, outcomes: Outcomes) -> dict[str, float]:
        """Learn from a step's outcomes; how far they were from what was expected, for the log."""
        if not self.is_on or outcomes.visits is None:
            return {}
        error = self.lengths.update(outcomes.visits.prompt_ids, *outcomes.judged_rollouts)
        return {} if error is None else {"length_error": error}

    def measure(self, ids: list[PromptId], p_P: np.ndarray, budgets: np.ndarray) -> dict[str, float]:
        """What the budgets are expected to take, for the log; nothing where that is not known."""
        known = self.is_on and self.lengths.started
        return {"expected_tokens": float((self.cost(ids, p_P) * budgets).sum())} if known else {}
