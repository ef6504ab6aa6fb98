"""The suite for hosts: a host that keeps its promises passes, and each way to break one is found by the test of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.hosts.session import BudgetSession, FinishedStep, Outcome
from coba_rl.testing import HostConformance
from coba_rl.testing.hosts import Judge, Trained

PROMPTS, BATCH, MEAN = 24, 8, 5


class Host:
    """The smallest host: it trains nothing."""

    length = 7.0

    def __init__(self, spec: AllocatorSpec, judge: Judge, folder: Path) -> None:
        self.session, self.judge, self.folder = BudgetSession(spec.build()), judge, folder

    def train(self, steps: int, resume: bool) -> list[FinishedStep]:
        self.begin(steps)
        first = self.load() if resume else 1
        finished = [self.step(number) for number in range(first, steps + 1)]
        self.session.save(self.folder)
        (self.folder / "next.json").write_text(json.dumps(steps + 1))
        return finished

    def begin(self, steps: int) -> None:
        self.session.begin(steps)

    def load(self) -> int:
        self.session.load(self.folder)
        return json.loads((self.folder / "next.json").read_text())

    def step(self, number: int) -> FinishedStep:
        ids = [(number * BATCH + i) % PROMPTS for i in range(BATCH)]
        allocation = self.session.plan(ids, BATCH * MEAN, groups=ids)
        self.generate(ids, allocation.budgets.tolist())
        if allocation.is_pilot:
            self.generate(ids, self.session.plan_rest().budgets.tolist(), first=int(allocation.budgets[0]))
        return self.session.finish(number)

    def generate(self, ids: list[int], budgets: list[int], first: int = 0) -> None:
        for prompt_id, budget in zip(ids, budgets, strict=True):
            scores = [self.judge(prompt_id, index) for index in range(first, budget)]
            self.tell(prompt_id, scores, first)

    def tell(self, prompt_id: int, scores: list[float | None], first: int = 0) -> None:
        self.session.record(
            Outcome(prompt_id, i, s, length=self.length) for i, s in enumerate(scores, first) if s is not None
        )


class TestHost(HostConformance):
    host: type[Host] = Host
    has_two_rounds = True

    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        host = self.host(spec, judge, folder)
        finished = host.train(steps, resume)
        return Trained(host.session.allocator, finished)


class EveryPromptTheSame(Host):
    def generate(self, ids: list[int], budgets: list[int], first: int = 0) -> None:
        super().generate(ids, [min(budget, MEAN) for budget in budgets], first)


class Ungrateful(Host):
    def tell(self, prompt_id: int, scores: list[float | None], first: int = 0) -> None:
        super().tell(prompt_id, [0.0 for _ in scores], first)


class AfreshInTheSecondRound(Host):
    def generate(self, ids: list[int], budgets: list[int], first: int = 0) -> None:
        super().generate(ids, budgets)


class LooksAtNothing(Host):
    def tell(self, prompt_id: int, scores: list[float | None], first: int = 0) -> None:
        pilot = self.session.allocator.pilot
        super().tell(prompt_id, scores if first or not pilot else [None] * len(scores), first)
        if first:
            super().tell(prompt_id, [self.judge(prompt_id, i) for i in range(pilot)])


class GroupByGroup(Host):
    def step(self, number: int) -> FinishedStep:
        observe, self.session.allocator.observe = self.session.allocator.observe, lambda *_, **__: None
        try:
            finished = super().step(number)
        finally:
            self.session.allocator.observe = observe
        for record in finished.records:
            ids, scores = zip(
                *[(record.prompt_id, self.judge(record.prompt_id, i)) for i in range(record.budget)],
                strict=True,
            )
            observe(ids, scores)
        return finished


class LostIsWrong(Host):
    def tell(self, prompt_id: int, scores: list[float | None], first: int = 0) -> None:
        super().tell(prompt_id, [0.0 if score is None else score for score in scores], first)


class Unmeasured(Host):
    length = 0.0


class Untold(Host):
    def begin(self, steps: int) -> None:
        self.session.begin(10 * steps)


class Forgetful(Host):
    def load(self) -> int:
        return json.loads((self.folder / "next.json").read_text())


class Restless(Host):
    def step(self, number: int) -> FinishedStep:
        finished = super().step(number)
        return FinishedStep(finished.records[number % 2 :], finished.metrics)


class Biased(Host):
    def step(self, number: int) -> FinishedStep:
        (first, *others), metrics = super().step(number)
        return FinishedStep([replace(first, budget=first.budget + 2), *others], metrics)


BROKEN: dict[type[Host], str] = {
    EveryPromptTheSame: "test_each_prompt_gets_its_number_of_rollouts",
    Ungrateful: "test_budgets_sum_to_one_total_and_follow_what_was_learnt",
    Biased: "test_uniform_is_even",
    Restless: "test_budgets_sum_to_one_total_and_follow_what_was_learnt",
    GroupByGroup: "test_outcomes_are_observed_once_a_step_and_all_of_them",
    AfreshInTheSecondRound: "test_two_rounds_keep_the_total_and_are_observed_once",
    LooksAtNothing: "test_two_rounds_keep_the_total_and_are_observed_once",
    LostIsWrong: "test_what_does_not_come_back_is_missing_and_teaches_nothing",
    Untold: "test_the_strategy_is_told_the_length_of_the_training",
    Unmeasured: "test_limited_tokens_are_learnt_from_lengths",
    Forgetful: "test_resume_equals_no_interruption",
}


@pytest.mark.parametrize("host", BROKEN, ids=lambda host: host.__name__)
def test_a_broken_promise_is_found(host: type[Host]) -> None:
    suite: Any = TestHost()
    suite.host = host
    with pytest.raises(AssertionError):
        getattr(suite, BROKEN[host])()
