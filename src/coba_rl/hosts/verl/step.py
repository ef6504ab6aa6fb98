"""One training step as the allocator sees it, without Ray: budgets out, outcomes in, records and metrics.

Axes: `_P` prompts submitted in one call, `_R` rollouts that came back in the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coba_rl.allocation import BudgetAllocator
from coba_rl.hosts.verl.outcomes import Outcome, check_success


@dataclass(slots=True)
class _Group:
    """A prompt submitted in this step."""

    prompt_id: str
    pass_rate: float
    budget: int
    by_session: dict[int, Outcome] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """What came back, in the order of the sessions."""
        return [self.by_session[session] for session in sorted(self.by_session)]


class StepAllocation:
    """Allocates a step's rollouts, collects what they scored, and tells the allocator once, at the step's end.

    Args:
        allocator: The allocator.
        mean_budget: Rollouts a prompt gets on average (`rollout.n`).

    Example:
        >>> step = StepAllocation(BudgetAllocator("uniform"), mean_budget=2)
        >>> step.allocate(["u0", "u1"], ["easy", "hard"]).tolist()
        [2, 2]
        >>> step.add([Outcome("u0", 0, 1.0, 1.0), Outcome("u0", 1, 1.0, 1.0), Outcome("u1", 0, 0.0, 0.0)])
        >>> records, metrics = step.finish(1)
        >>> records[1]
        {'step': 1, 'prompt_id': 'hard', 'pass_rate': None, 'budget': 2, 'successes': 0.0, 'attempts': 1}
        >>> metrics["coba/missing_rollouts"], metrics["coba/success_per_prompt"]
        (1.0, 0.5)
    """

    def __init__(self, allocator: BudgetAllocator, mean_budget: int) -> None:
        self.allocator = allocator
        self.mean_budget = mean_budget
        self._groups: dict[str, _Group] = {}
        self._num_refills = 0

    def allocate(self, uids: Sequence[str], prompt_ids: Sequence[str]) -> np.ndarray:
        """(P,) int64 budgets with mean `mean_budget`.

        The first call of a step is its batch. Later ones replace filtered or failed groups; they leave no trace in
        the allocator, so that its metrics, and a strategy that counts steps, keep to the step's batch.

        Args:
            uids: (P,) unique in the step.
            prompt_ids: (P,) stable over the run.
        """
        is_refill = bool(self._groups)
        allocate = self.allocator.preview if is_refill else self.allocator.allocate
        allocation = allocate(prompt_ids, total=len(prompt_ids) * self.mean_budget)
        self._num_refills += len(uids) if is_refill else 0
        rows = zip(uids, prompt_ids, allocation.pass_rates.tolist(), allocation.budgets.tolist(), strict=True)
        for uid, prompt_id, pass_rate, budget in rows:
            self._groups[uid] = _Group(prompt_id, pass_rate, budget)
        return allocation.budgets

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Collect rollouts that came back; prompts that were not allocated in this step are ignored.

        Raises:
            ConfigError: A success outside [0, 1] without a threshold.
        """
        outcomes = list(outcomes)
        check_success(self.allocator, outcomes)
        for outcome in outcomes:
            if outcome.uid in self._groups:
                self._groups[outcome.uid].by_session[outcome.session] = outcome

    def finish(self, step: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Tell the allocator what the step's rollouts scored, and start afresh.

        Args:
            step: Counted from 1.

        Returns:
            One record a prompt for `allocations.jsonl`, and the step's metrics.
        """
        groups = list(self._groups.values())
        # In the order of submission and session, whatever the order of arrival: sums of floats depend on it.
        outcomes = [outcome for group in groups for outcome in group.outcomes]
        self.allocator.observe(
            [self._groups[outcome.uid].prompt_id for outcome in outcomes],
            [outcome.success for outcome in outcomes],
        )
        allocated = sum(group.budget for group in groups)
        metrics = {
            **self.allocator.metrics(),
            **_score_per_prompt(groups),
            "coba/rollouts": float(allocated),
            "coba/missing_rollouts": float(allocated - len(outcomes)),
            "coba/refill_prompts": float(self._num_refills),
        }
        records = [self._record(step, group) for group in groups]
        self._groups, self._num_refills = {}, 0
        return records, metrics

    def _record(self, step: int, group: _Group) -> dict[str, Any]:
        successes = self.allocator.success([outcome.success for outcome in group.outcomes]).tolist()
        judged = [value for value in successes if not math.isnan(value)]
        return {
            "step": step,
            "prompt_id": group.prompt_id,
            "pass_rate": None if math.isnan(group.pass_rate) else group.pass_rate,
            "budget": group.budget,
            "successes": sum(judged, 0.0),
            "attempts": len(judged),
        }


def _score_per_prompt(groups: Iterable[_Group]) -> dict[str, float]:
    """Mean over all prompts generated of the mean reward of their rollouts; nothing without any.

    verl's `critic/score/mean` is over the rollouts trained on: a prompt counts as often as it has rollouts, and one
    that was filtered out not at all.
    """
    rewards = [[o.reward for o in group.outcomes if not math.isnan(o.reward)] for group in groups]
    means = [sum(group) / len(group) for group in rewards if group]
    return {"coba/score_per_prompt": sum(means) / len(means)} if means else {}
