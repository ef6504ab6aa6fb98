"""What every host must satisfy, and a trainer that does to a session whatever trainers do."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.hosts.session import BudgetSession, FinishedStep, Outcome
from coba_rl.records import AllocationRecord

Judge = Callable[[PromptId, int], float | None]
"""(prompt, which of its rollouts) → success; NaN cannot be judged, None never comes back."""


class Trained(NamedTuple):
    """What a host's training leaves."""

    allocator: BudgetAllocator
    """Of its session."""
    finished: list[FinishedStep]
    """What the session gave for each step trained now."""


class HostConformance(ABC):
    """Tests of one host. Subclass it, name the subclass `Test…`, and write `train`.

    The host trains on data of its own in which a batch holds no prompt twice; what its rollouts score is for the suite
    to say. Plain asserts: any test runner that collects `test_` methods of a `Test` class can run it.
    """

    loses_rollouts: bool = True
    """Whether rollouts of this trainer can fail to come back."""
    has_two_rounds: bool = False
    """Whether this trainer generates a second round of rollouts after a pilot."""

    @abstractmethod
    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        """Train up to a step, and leave a checkpoint of it.

        Args:
            spec: Of the allocator to use.
            judge: Asked once for each rollout.
            folder: Of the checkpoint, which is there if `resume` is true.
            steps: Of the whole training.
            resume: Go on from the checkpoint.
        """

    def test_each_prompt_gets_its_number_of_rollouts(self) -> None:
        asked: Counter[PromptId] = Counter()

        def judge(prompt_id: PromptId, index: int) -> float:
            asked[prompt_id] += 1
            return _graded(prompt_id, index)

        finished = self._train("coba", judge, steps=4).finished
        given: Counter[PromptId] = Counter()
        for record in _records(finished):
            given[record.prompt_id] += record.budget
        assert asked == given, f"rollouts judged {asked}, budgets given {given}"

    def test_budgets_sum_to_one_total_and_follow_what_was_learnt(self) -> None:
        finished = self._train("coba", _graded, steps=6).finished
        totals = {sum(record.budget for record in records) for records, _ in finished}
        assert len(totals) == 1, f"steps spent {sorted(totals)}"
        assert any(len({record.budget for record in records}) > 1 for records, _ in finished), "always even"

    def test_uniform_is_even(self) -> None:
        for records, _ in self._train("uniform", _graded, steps=2).finished:
            budgets = [record.budget for record in records]
            assert max(budgets) - min(budgets) <= 1, f"uniform gave {budgets}"

    def test_outcomes_are_observed_once_a_step_and_all_of_them(self) -> None:
        for judge in (_graded, _unjudged):
            allocator, finished = self._train("coba", judge, steps=4)
            assert _state(allocator) == _state(_replayed(finished, judge))

    def test_what_does_not_come_back_is_missing_and_teaches_nothing(self) -> None:
        if not self.loses_rollouts:
            return
        allocator, finished = self._train("coba", _lossy, steps=4)
        for records, metrics in finished:
            lost = sum(_lossy(r.prompt_id, i) is None for r in records for i in range(r.budget))
            assert metrics["coba/missing_rollouts"] == lost
            assert sum(record.attempts for record in records) == sum(r.budget for r in records) - lost
        assert any(metrics["coba/missing_rollouts"] for _, metrics in finished)
        assert _state(allocator) == _state(_replayed(finished, _lossy))

    def test_two_rounds_keep_the_total_and_are_observed_once(self) -> None:
        if not self.has_two_rounds:
            return
        asked: Counter[tuple[PromptId, int]] = Counter()

        def judge(prompt_id: PromptId, index: int) -> float:
            asked[prompt_id, index] += 1
            return _unjudged(prompt_id, index)

        spec = _spec("coba", pilot=3)
        with tempfile.TemporaryDirectory() as folder:
            allocator, finished = self.train(spec, judge, Path(folder), 4, resume=False)
        records = _records(finished)
        given = Counter((record.prompt_id, i) for record in records for i in range(record.budget))
        assert asked == given, f"rollouts judged {asked}, budgets given {given}"
        assert min(record.budget for record in records) == 3, "no prompt was left with its pilot"
        assert _state(allocator) == _state(_replayed(finished, _unjudged, spec))

    def test_the_strategy_is_told_the_length_of_the_training(self) -> None:
        finished = self._train("linear-decay", _graded, steps=3).finished  # refuses to allocate without
        alphas = [metrics["coba/alpha"] for _, metrics in finished]
        assert alphas == [10.0, 7.0, 4.0], f"three steps of a linear decay from 10 to 1 have α = {alphas}"

    def test_limited_tokens_are_learnt_from_lengths(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            allocator, finished = self.train(
                _spec("coba", budget_unit="tokens"), _graded, Path(folder), 4, resume=False
            )
        assert all(metrics["coba/tokens"] > 0.0 for _, metrics in finished), "the session is told no lengths"
        assert allocator.state_dict()["lengths"]["prompts"]["keys"], "no length was learnt"
        for records, metrics in finished[1:]:
            total = sum(record.budget for record in records)
            assert total <= metrics["coba/expected_tokens"], f"{total} rollouts of at least a token each"

    def test_resume_equals_no_interruption(self) -> None:
        allocator, straight = self._train("coba", _graded, steps=6)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _, first = self.train(_spec("coba"), _graded, folder, 3, resume=False)
            resumed, then = self.train(_spec("coba"), _graded, folder, 6, resume=True)
        assert len(first) == len(then) == 3
        assert _records([*first, *then]) == _records(straight)
        assert resumed.state_dict() == allocator.state_dict()

    def _train(self, strategy: str, judge: Judge, steps: int) -> Trained:
        with tempfile.TemporaryDirectory() as folder:
            return self.train(_spec(strategy), judge, Path(folder), steps, resume=False)


def _spec(strategy: str, **own: Any) -> AllocatorSpec:
    return AllocatorSpec(strategy=strategy, bounds=(2, 32), **own)


def _records(finished: list[FinishedStep]) -> list[AllocationRecord]:
    return [record for records, _ in finished for record in records]


def _draw(prompt_id: PromptId, index: int, of: str = "") -> float:
    """A number in [0, 1) that depends on nothing else."""
    return crc32(f"{prompt_id!r} {index} {of}".encode()) / 2**32


def _graded(prompt_id: PromptId, index: int) -> float:
    """Some prompts pass often, some hardly ever."""
    return float(_draw(prompt_id, index) < _draw(prompt_id, -1))


def _unjudged(prompt_id: PromptId, index: int) -> float:
    return np.nan if _draw(prompt_id, index, "unjudged") < 0.2 else _graded(prompt_id, index)


def _lossy(prompt_id: PromptId, index: int) -> float | None:
    return None if _draw(prompt_id, index, "lost") < 0.2 else _graded(prompt_id, index)


def _replayed(
    finished: list[FinishedStep], judge: Judge, spec: AllocatorSpec | None = None
) -> BudgetAllocator:
    """The plain allocator that was asked and told the same."""
    allocator = (spec or _spec("coba")).build()
    for records, _ in finished:
        ids = [record.prompt_id for record in records]
        allocation = allocator.allocate(ids, sum(record.budget for record in records))
        if allocation.is_pilot:
            allocation = allocator.allocate_rest([judge(i, k) for i in ids for k in range(allocator.pilot)])
        assert allocation.budgets.tolist() == [record.budget for record in records]
        scores = [(r.prompt_id, judge(r.prompt_id, k), k) for r in records for k in range(r.budget)]
        prompts, successes, numbers = zip(*[row for row in scores if row[1] is not None], strict=True)
        allocator.observe(prompts, successes, [k < (allocator.pilot or math.inf) for k in numbers])
    return allocator


def _state(allocator: BudgetAllocator) -> dict[str, Any]:
    """All but how many tokens the host's own model generated."""
    state = allocator.state_dict()
    state["outcome_metrics"].pop("tokens", None)
    return state


class FakeTrainer:
    """A trainer without a model, whose rollouts are late, lost, unjudged, repeated and out of order.

    It drives a session as an asynchronous trainer does: each step plans new groups, hands over what has come by then,
    and gives up on groups that are too old.

    Args:
        session: Has begun.
        seed: Of everything that is random.
        latest: Steps by which a rollout can be late, and after which its group is given up.
        lost, unjudged, repeated: Chances of each rollout.
        mean_budget: Rollouts of a prompt.

    Example:
        >>> session = BudgetSession(BudgetAllocator("coba", bounds=(2, 16)))
        >>> trainer = FakeTrainer(session, lost=0.1, latest=1)
        >>> steps = [trainer.step() for _ in range(5)]
        >>> sum(metrics["coba/missing_rollouts"] for _, metrics in steps) > 0
        True
    """

    NUM_PROMPTS, BATCH = 12, 4

    def __init__(
        self,
        session: BudgetSession,
        *,
        seed: int = 0,
        latest: int = 2,
        lost: float = 0.1,
        unjudged: float = 0.1,
        repeated: float = 0.1,
        mean_budget: int = 4,
    ) -> None:
        self.session, self.seed, self.latest, self.mean_budget = session, seed, latest, mean_budget
        self._chances = {"lost": lost, "unjudged": unjudged, "repeated": repeated}
        self._number = 0
        self._arriving: dict[int, list[Outcome]] = {}
        self._planned_at: dict[str, int] = {}

    def step(self) -> FinishedStep:
        """One step of training."""
        self._number += 1
        rng = np.random.default_rng((self.seed, self._number))
        ids = rng.choice(self.NUM_PROMPTS, self.BATCH, replace=False).tolist()
        names = [f"{self._number}/{prompt_id}" for prompt_id in ids]
        allocation = self.session.plan(ids, self.BATCH * self.mean_budget, groups=names)
        self._planned_at |= dict.fromkeys(names, self._number)
        self._send_off(rng, names, allocation, [0] * self.BATCH)
        self._take_in(rng)
        if allocation.is_pilot:
            self._send_off(rng, names, self.session.plan_rest(), allocation.budgets.tolist())
            self._take_in(rng)
        young = [name for name, number in self._planned_at.items() if number > self._number - self.latest]
        self.session.weigh()  # what a trainer multiplies advantages by
        return self.session.finish(self._number, waiting=young)

    def _take_in(self, rng: np.random.Generator) -> None:
        arrived = self._arriving.pop(self._number, [])
        for i in rng.permutation(len(arrived)):
            self.session.record([arrived[i]])

    def _send_off(
        self, rng: np.random.Generator, names: list[str], allocation: Allocation, sent: list[int]
    ) -> None:
        columns = names, allocation.prompt_ids, sent, allocation.budgets
        for name, prompt_id, first, budget in zip(*columns, strict=True):
            for index in range(first, budget):
                happens = {what: rng.random() < chance for what, chance in self._chances.items()}
                success = (
                    np.nan if happens["unjudged"] else float(rng.random() * self.NUM_PROMPTS < int(prompt_id))
                )
                due = self._number + int(rng.integers(self.latest + 1))
                outcome = Outcome(name, index, success, 0.0, 10.0 + int(prompt_id))
                if not happens["lost"]:
                    self._arriving.setdefault(due, []).append(outcome)
                if happens["repeated"]:
                    self._arriving.setdefault(due + 1, []).append(outcome)
