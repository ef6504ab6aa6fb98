"""`BudgetSession`: the life of a step in any trainer. A host gives it three answers: which prompts, where their numbers
of rollouts go, and what came back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.errors import CobaError, ConfigError, StateError
from coba_rl.hosts.groups import FinishedStep, Group, GroupId, Outcome, records_of, score_per_prompt
from coba_rl.hosts.resume import changed_settings, lost_histories, order_of, other_order
from coba_rl.hosts.state import STATE_FILE, read_state, write_state


class BudgetSession:
    """Plans a step's rollouts, takes their outcomes in any order and at any time, and observes them once a step.

    1. `begin(n)`: how many plans the whole training has, before the first one.
    2. `plan(prompt_ids, total)`: budgets; opens a group a prompt. With a pilot they are those of the first round, and
       `plan_rest()` adds the others when its outcomes have been recorded.
    3. `record(outcomes)`: as they come, one by one, a group at a time, or all at once; the last of several with one
       index counts.
    4. `finish(step)`: the allocator observes all of them at once, and groups end. Call it once per policy version: an
       allocator takes each call for a step, and estimates by group would be far noisier.
    5. `save(folder)` and `load(folder)`: with the allocator's memory go the groups that have not ended.

    In several processes each has a session; all of them plan and record the same.

    Args:
        allocator: The allocator.
        agree: Takes what this process worked out, an allocation or weights, returns what counts in all processes.
        settings: What a resumed run should have as it was, by name; `load` says what changed.
        data_ids: Gives the prompt id of every row of the training data in order, or None where it cannot be told.
        advice: Ends the message about a success that is none: what to set in this trainer.

    Example:
        >>> session = BudgetSession(BudgetAllocator("uniform"))
        >>> session.plan(["easy", "hard"], total=4).budgets.tolist()
        [2, 2]
        >>> session.record([Outcome(0, 0, 1.0), Outcome(1, 0, 0.0), Outcome(0, 1, 1.0)])
        >>> records, metrics = session.finish(1)
        >>> records[1].prompt_id, records[1].budget, records[1].attempts
        ('hard', 2, 1)
        >>> metrics["coba/missing_rollouts"], metrics["coba/success_per_prompt"]
        (1.0, 0.5)
    """

    def __init__(
        self,
        allocator: BudgetAllocator,
        *,
        agree: Callable[[Any], Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        data_ids: Callable[[], Sequence[PromptId] | None] | None = None,
        advice: str = "",
    ) -> None:
        self.allocator = allocator
        self.settings = dict(settings or {})
        self._agree, self._give_data_ids, self._advice = agree, data_ids, advice
        self._groups: dict[GroupId, Group] = {}
        self._last_plan: list[GroupId] = []
        self._num_planned = self._num_refills = self._num_late = 0

    def begin(self, num_plans: int) -> None:
        """Say how many plans the whole training has, refills aside; in a resumed run, too."""
        self.allocator.begin(num_plans)

    def plan(
        self,
        prompt_ids: Iterable[PromptId],
        total: int,
        *,
        groups: Sequence[GroupId] | None = None,
        refill: bool = False,
    ) -> Allocation:
        """Share out rollouts, and open a group for each prompt.

        Args:
            prompt_ids: (P,) stable over the run.
            total: Rollouts.
            groups: (P,) names of the groups, unlike those of any that is open; None: 0, 1, 2, … on through the run.
            refill: The prompts replace others of a step already planned. They leave no trace in the allocator, so that
                its metrics, and a strategy that counts steps, keep to the plan.

        Raises:
            InfeasibleBudgetError, TypeError: As `BudgetAllocator.allocate`.
            CobaError: A group is open already, or a refill would need a pilot.
        """
        if refill and self.allocator.pilot:
            raise CobaError(f"A refill with pilot={self.allocator.pilot}: expected pilot=0, one round.")
        allocate = self.allocator.preview if refill else self.allocator.allocate
        allocation = allocate(prompt_ids, total)
        if self._agree is not None:
            allocation = self._agree(allocation)
        num_prompts = len(allocation.budgets)
        names = range(self._num_planned, self._num_planned + num_prompts) if groups is None else groups
        names = list(names)
        if len(set(names)) < len(names) or not self._groups.keys().isdisjoint(names):
            raise CobaError(f"groups={names}: expected a name for each that no open group has.")
        for name, prompt_id, rate, value, budget in zip(
            names, *self._columns(allocation, total), strict=True
        ):
            self._groups[name] = Group(prompt_id, rate, value, budget, pilot=budget)
        self._num_planned += num_prompts
        self._num_refills += num_prompts if refill else 0
        self._last_plan = names
        return allocation

    def plan_rest(self) -> Allocation:
        """Share out what the pilot of the last plan left, by the outcomes recorded by now, and add it to its groups.

        A group's first rollouts are those of its pilot; what has not come back of them is no attempt.

        Returns:
            The whole budgets, those of the pilot included.

        Raises:
            CobaError: The last plan was no pilot, has its rest already, or a group of it is not open any more.
        """
        missing = [name for name in self._last_plan if name not in self._groups]
        if missing:
            raise CobaError(f"plan_rest() after groups {missing} of the plan ended: expected it before.")
        groups = [self._groups[name] for name in self._last_plan]
        successes = [group.success_of(index) for group in groups for index in range(group.pilot)]
        allocation = self.allocator.allocate_rest(successes)
        if self._agree is not None:
            allocation = self._agree(allocation)
        for group, _, *row in zip(groups, *self._columns(allocation, allocation.total), strict=True):
            group.pass_rate, group.value, group.budget = row
        return allocation

    def _columns(self, allocation: Allocation, total: int) -> tuple[list[Any], ...]:
        """(P,) ids, pass rates, values at the mean budget (NaN: there is none), and budgets."""
        num_prompts = len(allocation.budgets)
        values = self.allocator.strategy.value(allocation.pass_rates, total / max(num_prompts, 1))
        values = [math.nan] * num_prompts if values is None else values.tolist()
        return allocation.prompt_ids, allocation.pass_rates.tolist(), values, allocation.budgets.tolist()

    @property
    def open_groups(self) -> list[GroupId]:
        """Groups planned and not ended, in the order of their plans."""
        return list(self._groups)

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Take in rollouts that came back; those of groups that are not open any more are only counted.

        Raises:
            ConfigError: A success that is none; nothing is taken in.
            CobaError: A group has no such rollout; nothing is taken in.
        """
        outcomes = list(outcomes)
        self.check([outcome.success for outcome in outcomes])
        for name, index, *_ in outcomes:
            if name in self._groups and not 0 <= index < self._groups[name].budget:
                raise CobaError(
                    f"Rollout {index!r} of group {name!r}: expected one of 0 … {self._groups[name].budget - 1}."
                )
        for name, index, *measured in outcomes:
            if name in self._groups:
                success, reward, length = map(float, measured)
                self._groups[name].came_back[index] = (success, reward, length)
            else:
                self._num_late += 1

    def record_all(
        self, success_R: Sequence[float] | np.ndarray, length_R: Sequence[float] | np.ndarray | None = None
    ) -> None:
        """Take in a whole plan, the last one, whose rollouts all came back.

        Args:
            success_R: (R,) success of each rollout, group after group; NaN is no attempt.
            length_R: (R,) tokens that each generated; None: not known.

        Raises:
            ValueError: Another number of rollouts than was planned, or of lengths than of successes.
            ConfigError: A success that is none.
        """
        places = [(name, i) for name in self._last_plan for i in range(self._groups[name].budget)]
        successes = np.asarray(success_R, dtype=float).tolist()
        if len(successes) != len(places):
            raise ValueError(f"{len(successes)} successes: expected one for each of {len(places)} rollouts.")
        lengths = [math.nan] * len(places) if length_R is None else np.asarray(length_R, dtype=float).tolist()
        self.record(
            Outcome(*place, success, length=length)
            for place, success, length in zip(places, successes, lengths, strict=True)
        )

    def check(self, success_R: Sequence[float] | np.ndarray) -> None:
        """Refuse successes that are none, before they move anything.

        Raises:
            ConfigError: Without a threshold, a success outside [0, 1].
        """
        try:
            self.allocator.success(success_R)
        except ValueError as error:
            raise ConfigError(f"{error}{self._advice and ' '}{self._advice}") from None

    def weigh(self, groups: Sequence[GroupId] | None = None) -> np.ndarray:
        """How much the advantages of each group count, given what came back; before `finish`.

        Args:
            groups: (P,) open groups that are trained on; None: all, in the order of `open_groups`.

        Returns:
            (P,) weights of mean 1, see `BudgetAllocator.weigh`.
        """
        chosen = [self._groups[name] for name in (self._groups if groups is None else groups)]
        rollout_ids = [group.prompt_id for group in chosen for _ in group.outcomes]
        success_R = [success for group in chosen for success, *_ in group.outcomes]
        weights = self.allocator.weigh([group.prompt_id for group in chosen], rollout_ids, success_R)
        return weights if self._agree is None else self._agree(weights)

    def drop(self, groups: Iterable[GroupId]) -> None:
        """End groups without a trace, as if they had not been planned; names of no open group are passed over."""
        for name in groups:
            self._groups.pop(name, None)

    def finish(self, step: int, *, waiting: Collection[GroupId] = ()) -> FinishedStep:
        """Let the allocator observe what came back, once; end the groups.

        Args:
            step: The training step that uses the rollouts first, counted from 1.
            waiting: Groups whose rollouts may still come: those that are not whole stay open, outcomes and all, until
                a later step. Of any other group, what has not come back is missing.
        """
        still_open = set(waiting)
        ending = {
            name: group for name, group in self._groups.items() if name not in still_open or group.is_whole
        }
        # In the order of plan and index, whatever the order of arrival: sums of floats depend on it.
        came_back = [(group.prompt_id, outcome) for group in ending.values() for outcome in group.outcomes]
        lengths = [length for _, (_, _, length) in came_back]
        self.allocator.observe(
            [prompt_id for prompt_id, _ in came_back],
            [success for _, (success, _, _) in came_back],
            [in_pilot for group in ending.values() for in_pilot in group.in_pilot],
            lengths=None if any(map(math.isnan, lengths)) else lengths,
        )
        self._groups = {name: group for name, group in self._groups.items() if name not in ending}
        rollouts = sum(group.budget for group in ending.values())
        metrics = {
            **self.allocator.metrics(),
            **score_per_prompt(ending.values()),
            "coba/rollouts": float(rollouts),
            "coba/missing_rollouts": float(rollouts - len(came_back)),
            "coba/late_rollouts": float(self._num_late),
            "coba/refill_prompts": float(self._num_refills),
            "coba/open_groups": float(len(self._groups)),
        }
        self._num_refills = self._num_late = 0
        return FinishedStep(records_of(step, list(ending.values()), self.allocator.success), metrics)

    # --- Memory ---

    def _data_ids(self) -> Sequence[PromptId] | None:
        return None if self._give_data_ids is None else self._give_data_ids()

    @cached_property
    def _data_order(self) -> str | None:
        ids = self._data_ids()
        return None if ids is None else order_of(ids)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `coba_state.npz` into a checkpoint folder, whole or not at all."""
        state = {
            "allocator": self.allocator.state_dict(arrays=True),
            "groups": [[name, *group.as_row()] for name, group in self._groups.items()],
            "counts": [self._num_planned, self._num_refills, self._num_late],
            "settings": self.settings,
            "data_order": self._data_order,
        }
        write_state(folder, state)

    def load(self, folder: str | os.PathLike[str], *, amid_epoch: bool = False) -> list[str]:
        """Restore what `save` wrote; the session is as it was when this raises.

        Args:
            folder: The checkpoint folder. Without a state file the session stays as it is.
            amid_epoch: Whether the checkpoint was saved before the end of an epoch.

        Returns:
            Warnings, empty if this run simply goes on.

        Raises:
            StateError: The file is damaged, of another version or of another strategy; the message names it.
        """
        state = read_state(folder)
        if state is None:
            return [f"{folder} has no {STATE_FILE}: training goes on, but pass rates start anew."]
        try:
            groups = {name: Group.from_row(row) for name, *row in state["groups"]}
            planned, refills, late = map(int, state["counts"])
            settings, order = dict(state["settings"]), state["data_order"]
            self.allocator.load_state_dict(state["allocator"])
        except (StateError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{os.path.join(folder, STATE_FILE)}: {error}") from error
        self._groups = groups
        self._num_planned, self._num_refills, self._num_late = planned, refills, late
        ids = self._data_ids()
        return [
            *changed_settings(settings, self.settings),
            *([] if ids is None else lost_histories(self.allocator.strategy, ids)),
            *other_order(order, self._data_order, amid_epoch=amid_epoch),
        ]
