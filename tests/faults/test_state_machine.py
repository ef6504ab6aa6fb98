"""Any sequence of allocating, observing, saving and loading leaves an allocator that keeps its promises."""

from __future__ import annotations

import math
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coba_rl import STRATEGIES, BudgetAllocator
from coba_rl.errors import InfeasibleBudgetError
from coba_rl.hosts.session import BudgetSession

IDS = [*range(6), *"abcdef"]
BATCHES = st.lists(st.sampled_from(IDS), min_size=1, max_size=10)
SCORES = st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.0]))
LOW, HIGH = 2, 24


class Machine(RuleBasedStateMachine):
    """Two allocators live through the same; one of them is saved and loaded all the time."""

    name = ""

    @property
    def is_release(self) -> bool:
        """The release is copied with its quirks: it splits too small a total, and treats twins by their rows."""
        return self.name == "coba-release"

    def new(self) -> BudgetSession:
        allocator = BudgetAllocator(self.name, bounds=(LOW, HIGH))
        allocator.begin(20)
        return BudgetSession(allocator)

    @initialize()
    def start(self) -> None:
        self.straight, self.resumed = self.new(), self.new()
        self.seen: set[Any] = set()
        self.last: Any = None

    def both(self) -> list[BudgetAllocator]:
        return [self.straight.allocator, self.resumed.allocator]

    @rule(batch=BATCHES, share=st.floats(0, 1))
    def allocate(self, batch: list[Any], share: float) -> None:
        """A batch in which an id may occur twice."""
        total = round(len(batch) * (LOW + share * (HIGH - LOW)))
        first, second = (allocator.allocate(batch, total) for allocator in self.both())
        assert first.budgets.tolist() == second.budgets.tolist()
        np.testing.assert_array_equal(first.pass_rates, second.pass_rates)
        assert first.total == total
        assert (first.budgets >= LOW).all()
        assert (first.budgets <= HIGH).all()
        for prompt_id in set(batch):  # rows of one prompt are equal prompts
            of_one = first.budgets[[i for i, other in enumerate(batch) if other == prompt_id]]
            assert np.ptp(of_one) <= 1 or self.is_release
        self.last = first

    @rule(batch=BATCHES, more=st.integers(1, 50), sign=st.sampled_from([-1, 1]))
    def ask_for_the_impossible(self, batch: list[Any], more: int, sign: int) -> None:
        lowest = 0 if self.is_release else len(batch) * LOW
        total = len(batch) * HIGH + more if sign > 0 else lowest - more
        for allocator in self.both():
            with pytest.raises(InfeasibleBudgetError):
                allocator.allocate(batch, total)

    @precondition(lambda self: self.last is not None)
    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        """What the last allocation scored, or a part of it, in any order."""
        ids = [self.last.prompt_ids[i] for i in self.last.repeat_index]
        self.take_in(data.draw(st.permutations(ids).map(lambda all_: all_[:12])), data)

    @rule(batch=st.lists(st.sampled_from(["never allocated", *IDS]), max_size=8), data=st.data())
    def observe_unasked(self, batch: list[Any], data: st.DataObject) -> None:
        self.take_in(batch, data)

    def take_in(self, ids: list[Any], data: st.DataObject) -> None:
        scores = data.draw(st.lists(SCORES, min_size=len(ids), max_size=len(ids)))
        for allocator in self.both():
            allocator.observe(ids, scores)
        self.seen |= {i for i, s in zip(ids, scores, strict=True) if s is not None and not math.isnan(s)}

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.resumed.save(folder)
            self.resumed = self.new()
            assert self.resumed.load(folder) == []

    @rule()
    def load_over_what_was_learned_since(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.resumed.save(folder)
            self.resumed.allocator.observe(["a", "later"], [1.0, 0.0])
            self.resumed.load(folder)

    @precondition(lambda self: self.last is not None and not self.is_release)
    @rule(data=st.data())
    def permute(self, data: st.DataObject) -> None:
        """Another order of a batch moves a budget by at most one. Asked of copies: a question counts as a step."""
        batch = list(dict.fromkeys(self.last.prompt_ids))
        order = data.draw(st.permutations(batch))
        total = data.draw(st.integers(LOW * len(batch), HIGH * len(batch)))
        first, second = (self.copy().allocate(ids, total).as_dict() for ids in (batch, order))
        assert all(abs(first[i] - second[i]) <= 1 for i in batch)

    def copy(self) -> BudgetAllocator:
        with tempfile.TemporaryDirectory() as folder:
            self.straight.save(folder)
            copy = self.new()
            copy.load(folder)
        return copy.allocator

    @invariant()
    def histories_are_those_of_judged_prompts(self) -> None:
        ids = [*IDS, "never allocated", "never seen", 99]
        for allocator in self.both():
            assert allocator.strategy.seen(ids).tolist() == [i in self.seen for i in ids]
        first, second = (allocator.strategy.pass_rates(ids) for allocator in self.both())
        np.testing.assert_array_equal(first, second)
        assert ((first >= 0) & (first <= 1) | np.isnan(first)).all()

    @invariant()
    def metrics_are_finite_and_equal(self) -> None:
        first, second = (allocator.metrics() for allocator in self.both())
        assert first == second
        assert all(math.isfinite(value) for value in first.values())


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_no_sequence_of_calls_breaks_a_promise(name: str, soak: bool, survived: Any) -> None:
    machine = type("Machine", (Machine,), {"name": name})
    examples, steps = (150, 40) if soak else (20, 20)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))
    survived(f"{examples} sequences of up to {steps} calls")
