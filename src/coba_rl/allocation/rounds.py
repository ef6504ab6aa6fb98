"""The first round of a step whose rollouts come in two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coba_rl.allocation.allocation import Allocation
from coba_rl.allocation.outcomes import Outcomes
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.allocation.strategies import Strategy


@dataclass(frozen=True, eq=False)
class FirstRound:
    """A pilot that is under way.

    Args:
        prompt_ids: (P,) the batch.
        total: Rollouts of the step; with `tokens`, as many of mean cost as they are.
        tokens: Most expected tokens of the step; None: the total counts.
        each: Rollouts of a prompt in the pilot.
        pass_rates: (P,) before the pilot.
        is_known: Whether they come from elsewhere, so that outcomes tell nothing new.
    """

    prompt_ids: list[PromptId]
    total: int
    tokens: float | None
    each: int
    pass_rates: np.ndarray
    is_known: bool

    @property
    def allocation(self) -> Allocation:
        """The pilot's budgets."""
        budgets = np.full(len(self.prompt_ids), self.each, dtype=np.int64)
        remaining = max(self.total - int(budgets.sum()), 0)
        return Allocation(self.prompt_ids, budgets, self.pass_rates, is_pilot=True, remaining=remaining)

    def look(self, strategy: Strategy, success_R: np.ndarray) -> np.ndarray:
        """(P,) pass rates given what the pilot scored.

        Args:
            strategy: Whose estimates they are; it learns nothing.
            success_R: (R,) success of each rollout of the pilot, prompt after prompt; NaN is no attempt.

        Raises:
            ValueError: Another number of successes.
        """
        if len(success_R) != len(self.prompt_ids) * self.each:
            raise ValueError(
                f"{len(success_R)} successes: expected one for each rollout of the pilot, {len(self.prompt_ids)} prompts "
                f"times {self.each}."
            )
        visits = Outcomes([i for i in self.prompt_ids for _ in range(self.each)], success_R).visits
        if self.is_known or visits is None:
            return self.pass_rates
        return strategy.pass_rates_given(self.prompt_ids, visits)
