"""`Allocation`: the budgets of one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coba_rl.allocation.prompt_table import PromptId


@dataclass(frozen=True, eq=False)
class Allocation:
    """How one step's rollouts are shared out. Axes: `_P` prompts of the batch, `_R` rollouts of the step."""

    prompt_ids: list[PromptId]
    """(P,) as given to `allocate`; an id may occur more than once."""
    budgets: np.ndarray
    """(P,) int64 rollouts of each prompt."""
    pass_rates: np.ndarray
    """(P,) estimates the budgets came from; NaN where unknown."""
    is_pilot: bool = False
    """Whether these are the budgets of a first round, which is looked at before the rest is shared out."""
    remaining: int = 0
    """Rollouts of the step that a pilot leaves for the rest."""

    @property
    def total(self) -> int:
        """Rollouts of all budgets."""
        return int(self.budgets.sum())

    @property
    def repeat_index(self) -> np.ndarray:
        """(R,) int64 position in the batch of each rollout's prompt, group after group."""
        return np.repeat(np.arange(len(self.budgets)), self.budgets)

    def as_dict(self) -> dict[PromptId, int]:
        """Budget of each prompt id; the sum over its rows where an id occurs more than once."""
        budgets: dict[PromptId, int] = {}
        for prompt_id, budget in zip(self.prompt_ids, self.budgets.tolist(), strict=True):
            budgets[prompt_id] = budgets.get(prompt_id, 0) + budget
        return budgets
