"""A prompt's rollouts of one plan, while they are under way, and what is to be written of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from coba_rl.allocation.prompt_table import PromptId
from coba_rl.records import AllocationRecord

GroupId = str | int
"""Names a prompt's rollouts of one plan."""


class Outcome(NamedTuple):
    """One rollout that came back. Plain data: it may come from another process."""

    group: GroupId
    index: int
    """Which of the group's rollouts, from 0."""
    success: float
    """As the verifier has it; NaN is no attempt."""
    reward: float = math.nan
    """What is trained on; NaN where that is not known."""
    length: float = math.nan
    """Tokens that the model generated; NaN where that is not known."""


class FinishedStep(NamedTuple):
    """What is to be written of a step."""

    records: list[AllocationRecord]
    """One a group that ended."""
    metrics: dict[str, float]
    """Those of the allocator, and how the rollouts came back."""


@dataclass(slots=True)
class Group:
    """What was planned for a prompt, and what has come back so far."""

    prompt_id: PromptId
    pass_rate: float
    """Believed when the budget was given; NaN: nothing was known."""
    value: float
    """Of the prompt at the mean budget; NaN: the strategy has no value function, or nothing was known."""
    budget: int
    pilot: int
    """Rollouts whose number was fixed before any came back: those of the first round, or all where there is one."""
    came_back: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """Success, reward and length by index."""

    @property
    def is_whole(self) -> bool:
        """Whether every rollout has come back."""
        return len(self.came_back) == self.budget

    @property
    def outcomes(self) -> list[tuple[float, float, float]]:
        """Success, reward and length of what came back, in the order of the index."""
        return [self.came_back[index] for index in sorted(self.came_back)]

    def success_of(self, index: int) -> float:
        """Of one rollout; NaN is no attempt, or one that has not come back."""
        return self.came_back.get(index, (math.nan, math.nan))[0]

    @property
    def in_pilot(self) -> list[bool]:
        """Whether each of `outcomes` is of the first round."""
        return [index < self.pilot for index in sorted(self.came_back)]

    def as_row(self) -> list[Any]:
        """Fit for JSON; `from_row` reads it."""
        planned = [self.prompt_id, or_none(self.pass_rate), or_none(self.value), self.budget, self.pilot]
        return [*planned, *([index, *map(or_none, outcome)] for index, outcome in self.came_back.items())]

    @classmethod
    def from_row(cls, row: list[Any]) -> Group:
        """What `as_row` gave.

        Raises:
            TypeError, ValueError: It is no such row.

        Example:
            >>> group = Group("a", 0.5, math.nan, 2, 2, {1: (1.0, math.nan, 7.0)})
            >>> Group.from_row(group.as_row()).as_row() == group.as_row()
            True
        """
        prompt_id, pass_rate, value, budget, pilot, *came_back = row
        outcomes = {int(i): (_or_nan(s), _or_nan(reward), _or_nan(n)) for i, s, reward, n in came_back}
        return cls(prompt_id, _or_nan(pass_rate), _or_nan(value), int(budget), int(pilot), outcomes)


def records_of(
    step: int, groups: Sequence[Group], success: Callable[[list[float]], np.ndarray]
) -> list[AllocationRecord]:
    """One a group.

    Args:
        step: That uses the rollouts first.
        groups: That ended.
        success: Turns what a verifier said into success, of all rollouts at once; NaN is no attempt.
    """
    success_R = iter(success([value for group in groups for value, *_ in group.outcomes]).tolist())
    records = []
    for group in groups:
        judged = [value for value in islice(success_R, len(group.came_back)) if not math.isnan(value)]
        rate, value = or_none(group.pass_rate), or_none(group.value)
        came_of_it = group.budget, sum(judged, 0.0), len(judged)
        records.append(AllocationRecord(step, group.prompt_id, rate, value, *came_of_it))
    return records


def or_none(value: float) -> float | None:
    """A number as JSON has it: None for NaN and infinities."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def score_per_prompt(groups: Iterable[Group]) -> dict[str, float]:
    """Mean over prompts of the mean reward of their rollouts, a pilot's where there was one; nothing where none is known.

    A trainer's own mean is over the rollouts it trains on: a prompt counts as often as it has rollouts.
    """
    outcomes = [zip(group.outcomes, group.in_pilot, strict=True) for group in groups]
    rewards = [
        [reward for (_, reward, _), first in group if first and not math.isnan(reward)] for group in outcomes
    ]
    means = [sum(group) / len(group) for group in rewards if group]
    return {"coba/score_per_prompt": sum(means) / len(means)} if means else {}
