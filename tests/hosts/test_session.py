"""The life of a step, framework or not: outcomes in any order and at any time, observed once, and nothing lost."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator
from coba_rl.errors import CobaError, ConfigError, InfeasibleBudgetError, StateError
from coba_rl.hosts.session import BudgetSession, Outcome
from coba_rl.hosts.state import read_state, write_state
from coba_rl.records import AllocationRecord

GOLDEN = Path(__file__).parents[1] / "golden" / "host_outcomes.json"
SUCCESSES = st.sampled_from([0.0, 0.3, 1.0, math.nan])


def session(strategy: str = "uniform", bounds: tuple[int, int] = (1, 9), **keywords: Any) -> BudgetSession:
    made = BudgetSession(BudgetAllocator(strategy, bounds=bounds), **keywords)
    made.begin(10)
    return made


def all_of(allocation: Any, draw: Any, first: int = 0) -> list[Outcome]:
    """An outcome for every rollout, the groups counted from `first`."""
    return [
        Outcome(first + position, index, draw(), 0.5)
        for position, budget in enumerate(allocation.budgets.tolist())
        for index in range(budget)
    ]


@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_neither_order_of_arrival_nor_lost_rollouts_matter_beyond_their_counts(
    random: Any, num_lost: int
) -> None:
    live, oracle = session("coba", (2, 9)), BudgetAllocator("coba", bounds=(2, 9))
    ids = ["p0", "p1", 2]
    for step in range(1, 4):
        allocation = live.plan(ids, 12)
        assert allocation.budgets.tolist() == oracle.allocate(ids, 12).budgets.tolist()
        outcomes = all_of(allocation, lambda: random.choice([0.0, 0.3, 1.0, math.nan]), 3 * (step - 1))
        kept = random.sample(outcomes, 12 - num_lost)
        for size in (1, 4, len(kept)):  # some by themselves, some together, all of them again
            live.record(kept[:size])
        records, metrics = live.finish(step)
        oracle.observe([ids[o.group % 3] for o in kept], [o.success for o in kept])
        assert live.allocator.state_dict() == oracle.state_dict()
        assert metrics["coba/missing_rollouts"] == num_lost
        assert (metrics["coba/rollouts"], metrics["coba/late_rollouts"], metrics["coba/open_groups"]) == (
            12,
            0,
            0,
        )
        assert sum(r.attempts for r in records) == sum(not math.isnan(o.success) for o in kept)
        assert [r.budget for r in records] == allocation.budgets.tolist()


@given(st.lists(SUCCESSES, min_size=8, max_size=8))
def test_a_whole_plan_at_once_is_the_same_as_one_by_one(successes: list[float]) -> None:
    at_once, one_by_one = session("coba"), session("coba")
    for each in (at_once, one_by_one):
        each.plan(["a", "b"], 8)
    at_once.record_all(successes)
    for position, success in enumerate(successes):
        one_by_one.record([Outcome(position // 4, position % 4, success)])
    assert repr(at_once.finish(1)) == repr(one_by_one.finish(1))
    assert at_once.allocator.state_dict() == one_by_one.allocator.state_dict()


def test_the_last_of_several_outcomes_of_one_rollout_counts() -> None:
    live = session()
    live.plan(["a"], 2)
    live.record([Outcome(0, 0, 0.0), Outcome(0, 1, 0.0), Outcome(0, 0, 1.0)])
    [record], _ = live.finish(1)
    assert record == AllocationRecord(1, "a", None, None, 2, 1.0, 2)


def test_what_comes_after_its_group_ended_is_counted_and_teaches_nothing() -> None:
    live = session("coba")
    live.plan(["a"], 2)
    live.finish(1)
    state = live.allocator.state_dict()
    live.record([Outcome(0, 0, 1.0), Outcome("never planned", 0, 1.0)])
    records, metrics = live.finish(2)
    assert (records, metrics["coba/late_rollouts"]) == ([], 2.0)
    assert live.allocator.state_dict()["prompts"] == state["prompts"]
    assert live.finish(3).metrics["coba/late_rollouts"] == 0.0


def test_groups_that_are_waited_for_are_observed_once_and_whole() -> None:
    """Rollouts outlast the policy that they were planned for, as in asynchronous trainers."""
    live, oracle = session("coba"), BudgetAllocator("coba", bounds=(1, 9))
    live.plan(["slow", "quick"], 4)
    oracle.allocate(["slow", "quick"], 4)
    live.record([Outcome(0, 0, 1.0), Outcome(1, 1, 1.0), Outcome(1, 0, 0.0)])
    records, metrics = live.finish(1, waiting=live.open_groups)
    oracle.observe(["quick"] * 2, [1.0, 0.0])
    assert [record.prompt_id for record in records] == ["quick"]
    assert (live.open_groups, metrics["coba/open_groups"], metrics["coba/missing_rollouts"]) == (
        [0],
        1.0,
        0.0,
    )
    assert live.allocator.state_dict() == oracle.state_dict()
    live.record([Outcome(0, 1, 0.0)])
    [record], metrics = live.finish(2, waiting=[0])
    oracle.observe(["slow"] * 2, [1.0, 0.0])
    assert (record.step, record.prompt_id, record.successes, record.attempts) == (2, "slow", 1.0, 2)
    assert live.allocator.state_dict() == oracle.state_dict()


def test_dropped_groups_leave_no_trace() -> None:
    live = session("coba")
    live.plan(["a", "b"], 4, groups=["x", "y"])
    live.record([Outcome("x", 0, 1.0)])
    live.drop(["x", "no such group"])
    records, metrics = live.finish(1)
    assert [record.prompt_id for record in records] == ["b"]
    assert (metrics["coba/rollouts"], metrics["coba/missing_rollouts"]) == (2.0, 2.0)
    assert not live.allocator.strategy.seen(["a"]).any()


def test_refills_leave_no_trace_in_the_allocator() -> None:
    live = session("linear-decay", (2, 9))
    live.plan(["p", "q", "r"], 12, groups=["a", "b", "c"])
    state = live.allocator.state_dict()
    for refill, size in enumerate((1, 2, 7)):
        names = [f"{refill}/{i}" for i in range(size)]
        budgets = live.plan(names, 4 * size, groups=names, refill=True).budgets
        assert budgets.sum() == 4 * size
        assert 2 <= budgets.min() <= budgets.max() <= 9
        assert live.allocator.state_dict() == state
    records, metrics = live.finish(1)
    assert len(records) == 13
    assert metrics["coba/refill_prompts"] == 10
    assert metrics["coba/missing_rollouts"] == metrics["coba/rollouts"] == 52
    live.plan(["p"], 4)
    assert live.allocator.state_dict()["strategy_state"]["step"] == 2


def test_the_score_per_prompt_covers_all_that_was_generated() -> None:
    """The mean over prompts of the mean over their rollouts, of the rewards that are known."""
    live = session()
    live.plan([*"abcd"], 8, groups=[*"abcd"])
    rewards = {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (3.0, math.nan)}
    for name, pair in rewards.items():
        live.record([Outcome(name, i, 0.0, reward) for i, reward in enumerate(pair)])
    assert live.finish(1).metrics["coba/score_per_prompt"] == pytest.approx((0.0 + 0.5 + 3.0) / 3)
    live.plan(["e"], 2)
    assert "coba/score_per_prompt" not in live.finish(2).metrics


def test_records_tell_the_value_of_strategies_that_have_one() -> None:
    for strategy, has_value in (("coba-paper", True), ("uniform", False)):
        live = session(strategy)
        live.plan(["a"], 2)
        live.record_all([1.0, 0.0])
        assert live.finish(1).records[0].value is None  # nothing was known
        allocation = live.plan(["a", "new"], 4)
        values = live.allocator.strategy.value(allocation.pass_rates, 2.0)
        [known, _], _ = live.finish(2)
        assert known.value == (float(values[0]) if has_value else None)


# Mistakes


def test_a_success_that_is_none_is_refused_and_nothing_is_taken_in() -> None:
    live = session(advice="Set the thing.")
    live.plan(["a"], 2)
    with pytest.raises(ConfigError, match=r"success -1.0.*success_threshold.*Set the thing\."):
        live.record([Outcome(0, 0, 1.0), Outcome(0, 1, -1.0)])
    assert live.finish(1).metrics["coba/missing_rollouts"] == 2.0
    lenient = BudgetSession(BudgetAllocator("uniform", bounds=(1, 9), success_threshold=0.0))
    lenient.plan(["a"], 2)
    lenient.record([Outcome(0, 0, -1.0), Outcome(0, 1, 1.0)])
    [record], _ = lenient.finish(1)
    assert (record.successes, record.attempts) == (1.0, 2)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_rollout_that_was_not_planned_is_refused(index: int) -> None:
    live = session()
    live.plan(["a"], 2)
    with pytest.raises(CobaError, match=r"of group 0: expected one of 0 … 1"):
        live.record([Outcome(0, 0, 1.0), Outcome(0, index, 1.0)])
    assert live.finish(1).metrics["coba/missing_rollouts"] == 2.0


def test_another_number_of_outcomes_than_rollouts_is_refused() -> None:
    live = session()
    live.plan(["a"], 2)
    with pytest.raises(ValueError, match="3 successes: expected one for each of 2 rollouts"):
        live.record_all([1.0, 0.0, 1.0])


@pytest.mark.parametrize("names", [["x", "x"], ["open", "y"]])
def test_a_group_needs_a_name_of_its_own(names: list[str]) -> None:
    live = session()
    live.plan(["a"], 2, groups=["open"])
    with pytest.raises(CobaError, match="expected a name for each that no open group has"):
        live.plan(["b", "c"], 4, groups=names)
    assert live.open_groups == ["open"]


def test_a_total_that_does_not_fit_opens_no_group() -> None:
    live = session()
    with pytest.raises(InfeasibleBudgetError):
        live.plan(["a"], 99)
    assert live.open_groups == []


# Memory


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_session_in_flight_goes_on_from_its_checkpoint(strategy: str, tmp_path: Path) -> None:
    """Planned, some of it back, and saved: as if it had not stopped."""
    straight = session(strategy, (2, 9))
    straight.plan(["a", "b"], 12)
    straight.record_all([1.0, 0.0, math.nan] * 4)
    straight.finish(1)
    straight.plan(["b", 7], 12)
    straight.record([Outcome(2, 0, 1.0, 0.25), Outcome(3, 1, 0.0)])
    straight.plan(["late"], 2, refill=True)
    straight.save(tmp_path)
    resumed = session(strategy, (2, 9))
    assert resumed.load(tmp_path) == []
    ends = []
    for each in (straight, resumed):
        each.record([Outcome(2, 1, 1.0, 0.75), Outcome(0, 0, 1.0)])
        first = each.finish(2)
        budgets = each.plan(["a", "b", 7], 13).budgets.tolist()
        ends.append((repr(first), budgets, each.open_groups, each.allocator.state_dict()))
    assert ends[0] == ends[1]


def test_what_changed_is_said(tmp_path: Path) -> None:
    saved = session(settings={"G": 4, "P": 2}, data_ids=lambda: ["a", "b", "c"])
    saved.plan(["a", "b"], 4)
    saved.record_all([1.0, 0.0, 1.0, 1.0])
    saved.finish(1)
    saved.save(tmp_path)
    now = session(settings={"G": 8, "P": 2, "new": 1}, data_ids=lambda: ["c", "b", "d"])
    changed, lost, reordered = now.load(tmp_path, amid_epoch=True)
    assert changed == "G was 4 when the checkpoint was saved and is 8 now."
    assert lost.startswith("1 of 2 prompts with a history are not in the training data any more")
    assert "some prompts are visited twice and some not at all" in reordered
    assert len(now.load(tmp_path, amid_epoch=False)) == 2
    assert session().load(tmp_path, amid_epoch=True) == []  # a stream of which nothing is known
    assert session().load(tmp_path / "nowhere") == [
        f"{tmp_path / 'nowhere'} has no coba_state.npz: training goes on, but pass rates start anew."
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"groups": [["x"]]},
        {"groups": [["x", "a", 0.5, None, 2, [0, 1.0]]]},
        {"groups": 7},
        {"counts": [1, 2]},
        {"settings": None},
        {"allocator": {"version": 1, "strategy": "gvm"}},
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: Any, tmp_path: Path) -> None:
    live = session("coba")
    live.plan(["a"], 2)
    live.save(tmp_path)
    state, groups = live.allocator.state_dict(), live.open_groups
    write_state(tmp_path, {**read_state(tmp_path), **change})
    with pytest.raises(StateError, match=r"coba_state\.npz"):
        live.load(tmp_path)
    assert (live.allocator.state_dict(), live.open_groups) == (state, groups)


def test_a_session_and_its_outcomes_can_cross_to_another_process() -> None:
    live = session("coba", settings={"G": 4})
    live.plan(["a"], 2)
    there = pickle.loads(pickle.dumps(live))  # noqa: S301
    for each in (live, there):
        each.record(pickle.loads(pickle.dumps([Outcome(0, 0, 1.0)])))  # noqa: S301
    assert repr(live.finish(1)) == repr(there.finish(1))


def test_every_process_uses_the_allocation_that_all_agree_on() -> None:
    main, other = session("coba", (1, 9)), session("coba", (1, 9))
    other.allocator.observe(["a"], [1.0])
    agreed = []
    main._agree = lambda allocation: agreed.append(allocation) or allocation
    other._agree = lambda _: agreed[-1]
    assert main.plan(["a", "b"], 9) is other.plan(["a", "b"], 9) is agreed[0]


def test_the_recorded_budgets_are_those_of_the_plain_allocator() -> None:
    recorded = json.loads(GOLDEN.read_text())
    for case in recorded["cases"]:
        allocator = BudgetAllocator(case["strategy"], bounds=tuple(recorded["bounds"]), **case["options"])
        live = BudgetSession(allocator)
        live.begin(len(case["steps"]))
        for number, step in enumerate(case["steps"], 1):
            allocation = live.plan(step["prompt_ids"], sum(step["budgets"]))
            assert allocation.budgets.tolist() == step["budgets"], (
                f"{case['strategy']} changed: run {GOLDEN.with_suffix('.py')}"
            )
            live.record_all([success for group in step["successes"] for success in group])
            live.finish(number)


# Two rounds


def in_two_rounds(**keywords: Any) -> BudgetSession:
    return BudgetSession(BudgetAllocator("coba", bounds=(2, 9), pilot=2), **keywords)


def test_the_rest_follows_what_was_recorded_of_the_pilot() -> None:
    live, oracle = in_two_rounds(), BudgetAllocator("coba", bounds=(2, 9), pilot=2)
    pilot = live.plan(["a", "b", "c"], 15)
    assert pilot.budgets.tolist() == [2, 2, 2]
    with pytest.raises(CobaError, match=r"expected one of 0 … 1"):
        live.record([Outcome(0, 2, 1.0)])  # not planned yet
    live.record([Outcome(1, 1, 0.0), Outcome(0, 0, 1.0), Outcome(2, 1, 1.0), Outcome(2, 0, math.nan)])
    whole = live.plan_rest()
    oracle.allocate(["a", "b", "c"], 15)
    expected = oracle.allocate_rest([1.0, None, None, 0.0, None, 1.0])  # what is not back is no attempt
    assert whole.budgets.tolist() == expected.budgets.tolist()
    live.record_all([1.0] * 15)
    records, metrics = live.finish(1)
    assert [record.budget for record in records] == whole.budgets.tolist()
    assert [record.pass_rate for record in records] == whole.pass_rates.tolist()
    assert [record.value for record in records] == oracle.strategy.value(whole.pass_rates, 5.0).tolist()
    in_pilot = [k < 2 for budget in whole.budgets for k in range(budget)]
    oracle.observe([whole.prompt_ids[i] for i in whole.repeat_index], [1.0] * 15, in_pilot)
    assert live.allocator.state_dict() == oracle.state_dict()
    assert metrics["coba/rollouts"] == 15


def test_the_score_per_prompt_is_that_of_the_pilot() -> None:
    live = in_two_rounds()
    live.plan(["a", "b"], 8)
    live.record(Outcome(group, index, 1.0, float(group)) for group in (0, 1) for index in (0, 1))
    for name, budget in enumerate(live.plan_rest().budgets.tolist()):
        live.record(Outcome(name, index, 0.0, 9.0) for index in range(2, budget))
    assert live.finish(1).metrics["coba/score_per_prompt"] == 0.5


def test_a_group_in_flight_keeps_its_pilot_in_a_checkpoint(tmp_path: Path) -> None:
    straight, resumed = in_two_rounds(), in_two_rounds()
    straight.plan(["a", "b"], 10, groups=["x", "y"])
    straight.record([Outcome("x", 0, 1.0), Outcome("y", 1, 0.0)])
    straight.plan_rest()
    straight.finish(1, waiting=["x", "y"])
    straight.save(tmp_path)
    assert resumed.load(tmp_path) == []
    for live in (straight, resumed):
        live.record([Outcome("x", 1, 0.0), Outcome("x", 2, 1.0), Outcome("y", 3, 1.0)])
        live.finish(2)
    assert resumed.allocator.state_dict() == straight.allocator.state_dict()
    assert straight.allocator.metrics()["coba/success_per_prompt"] == 0.25  # x: 1 of 2, y: 0 of 1


def test_every_process_uses_the_rest_that_all_agree_on() -> None:
    agreed: list[bool] = []

    def agree(allocation: Any) -> Any:
        agreed.append(allocation.is_pilot)
        return allocation

    live = in_two_rounds(agree=agree)
    live.plan(["a"], 4)
    live.plan_rest()
    assert agreed == [True, False]


def test_a_rest_out_of_turn_is_refused() -> None:
    live = in_two_rounds()
    with pytest.raises(CobaError, match="without a pilot under way"):
        live.plan_rest()
    live.plan(["a"], 4, groups=["x"])
    live.drop(["x"])
    with pytest.raises(CobaError, match=r"plan_rest\(\) after groups \['x'\] of the plan ended"):
        live.plan_rest()
    with pytest.raises(CobaError, match="A refill with pilot=2"):
        live.plan(["b"], 4, refill=True)
