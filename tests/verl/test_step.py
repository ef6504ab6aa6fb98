"""One step of the verl host without Ray: outcomes read, budgets given, the allocator told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.allocation import BudgetAllocator
from coba_rl.errors import ConfigError
from coba_rl.hosts.verl.filtering import lone_keys, surplus_keys
from coba_rl.hosts.verl.outcomes import Outcome, read_outcomes, success_of
from coba_rl.hosts.verl.step import StepAllocation

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


def test_outcomes_skip_padding_and_count_a_rollout_of_several_rows_once(queue: Any) -> None:
    rows = {
        "u_0_0": queue.row(0.5, acc=1.0),
        "u_0_1": queue.row(0.5, 5, acc=1.0),
        "u_1_0": queue.row(0.0, acc=False),
        "pad_0_0": queue.row(0.0, acc=1.0),
        "v_10_0": queue.row(1.0, 2, acc=True),
    }
    queue.rows = rows
    tags = [{"is_padding": key.startswith("pad")} for key in rows]
    assert read_outcomes(list(rows), tags, success_key=None) == [
        Outcome("u", 0, 1.0, 0.5),
        Outcome("u", 1, 0.0, 0.0),
        Outcome("v", 10, 1.0, 1.0),
    ]
    assert read_outcomes(["pad_0_0"], [{"is_padding": True}], success_key=None) == []


def test_success_comes_from_the_chosen_key(queue: Any) -> None:
    rows = {"u_0_0": queue.row(-0.2, acc=False, strict=1.0, score=-0.2)}
    queue.rows = rows
    [outcome] = read_outcomes(list(rows), [{}], success_key="strict")
    assert outcome.success == 1.0
    assert outcome.reward == pytest.approx(-0.2)
    with pytest.raises(ConfigError, match="'strict'"):
        read_outcomes(list(rows), [{}], success_key="strikt")


def test_success_falls_back_to_the_score_and_to_the_reward() -> None:
    assert success_of({"score": 0.25}, -1.0, None) == 0.25
    assert success_of({}, 0.75, None) == 0.75
    assert math.isnan(success_of({"judge": None}, 1.0, "judge"))
    with pytest.raises(ConfigError, match="'right'"):
        success_of({"judge": "right"}, 1.0, "judge")


def test_rounding_neither_refuses_a_success_nor_misses_a_threshold() -> None:
    for threshold, successes, expected in (
        (None, (1.0000001, -1e-8), 1.0),
        (0.9, (float(np.float32(0.9)), 0.89), 1.0),
    ):
        step = StepAllocation(BudgetAllocator("uniform", success_threshold=threshold), 2)
        step.allocate(["u"], ["p"])
        step.add([Outcome("u", session, success, success) for session, success in enumerate(successes)])
        assert step.finish(1)[0][0]["successes"] == expected


def test_a_success_outside_zero_to_one_needs_a_threshold() -> None:
    for threshold, fails in ((None, True), (0.0, False)):
        step = StepAllocation(BudgetAllocator("uniform", success_threshold=threshold), 2)
        step.allocate(["u"], ["p"])
        outcomes = [Outcome("u", 0, -1.0, -1.0), Outcome("u", 1, 1.0, 1.0)]
        if fails:
            with pytest.raises(ConfigError, match="success_threshold"):
                step.add(outcomes)
        else:
            step.add(outcomes)
            [record], _ = step.finish(1)
            assert (record["successes"], record["attempts"]) == (1.0, 2)


@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_neither_order_of_arrival_nor_lost_rollouts_matter_beyond_their_counts(
    random: Any, num_lost: int
) -> None:
    allocator = BudgetAllocator("coba", bounds=(2, 9), estimator="drift")
    oracle = BudgetAllocator("coba", bounds=(2, 9), estimator="drift")
    step = StepAllocation(allocator, 4)
    for number in range(1, 4):
        ids = [f"p{i}" for i in range(3)]
        uids = [f"{number}-{i}" for i in ids]
        budgets = step.allocate(uids, ids)
        assert budgets.tolist() == oracle.allocate(ids, 12).budgets.tolist()
        outcomes = [
            Outcome(uid, session, random.choice([0.0, 0.3, 1.0, math.nan]), 0.0)
            for uid, budget in zip(uids, budgets, strict=True)
            for session in range(budget)
        ]
        kept = sorted(random.sample(range(12), 12 - num_lost))
        came_back = [outcomes[i] for i in kept]
        step.add(random.sample(came_back, len(came_back)))
        records, metrics = step.finish(number)
        oracle.observe([o.uid.split("-")[1] for o in came_back], [o.success for o in came_back])
        assert allocator.state_dict() == oracle.state_dict()
        assert metrics["coba/missing_rollouts"] == num_lost
        assert sum(r["attempts"] for r in records) == sum(not math.isnan(o.success) for o in came_back)


def test_refills_are_legal_and_leave_no_trace_in_the_allocator() -> None:
    allocator = BudgetAllocator("linear-decay", num_steps=10, bounds=(2, 9))
    step = StepAllocation(allocator, 4)
    step.allocate(["a", "b", "c"], ["p", "q", "r"])
    state = allocator.state_dict()
    for refill, size in enumerate((1, 2, 7)):
        budgets = step.allocate(
            [f"{refill}-{i}" for i in range(size)], [f"{refill}/{i}" for i in range(size)]
        )
        assert budgets.sum() == 4 * size
        assert 2 <= budgets.min() <= budgets.max() <= 9
        assert allocator.state_dict() == state
    records, metrics = step.finish(1)
    assert len(records) == 13
    assert metrics["coba/refill_prompts"] == 10
    assert metrics["coba/missing_rollouts"] == metrics["coba/rollouts"] == 52
    step.allocate(["d"], ["p"])
    assert allocator.state_dict()["strategy_state"]["step"] == 2


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(0, 20))
def test_surplus_comes_from_the_largest_groups(sizes: list[int], surplus: int) -> None:
    keys = [f"u{i}_{session}_0" for i, size in enumerate(sizes) for session in range(size)]
    limit = max(2 * len(sizes), len(keys) - surplus)
    alike = [Outcome(key.split("_")[0], int(key.split("_")[1]), 1.0, 1.0) for key in keys]
    dropped = surplus_keys(keys[::-1], alike[::-1], limit)
    left = [key for key in keys if key not in dropped]
    assert len(left) == min(limit, len(keys))
    after = [sum(key.startswith(f"u{i}_") for key in left) for i in range(len(sizes))]
    assert left == [f"u{i}_{session}_0" for i, size in enumerate(after) for session in range(size)]
    level = max(after)
    assert all(now in (then, level, level - 1) and now >= 2 for now, then in zip(after, sizes, strict=True))


@given(st.data(), st.sampled_from(["success", "reward"]))
def test_a_cut_group_keeps_what_it_was_kept_for(data: st.DataObject, differs_in: str) -> None:
    """Each group differs in success, or in reward alone; some rollouts are not judged."""
    values = st.sampled_from([0.0, 0.0, 0.0, 1.0, math.nan])
    groups = data.draw(st.lists(st.lists(values, min_size=2, max_size=9), min_size=1, max_size=5))
    outcomes = []
    for i, group in enumerate(groups):
        group += [0.0, 1.0]  # The rarer one last, where cutting begins.
        for session, value in enumerate(group):
            success, reward = (value, 0.5) if differs_in == "success" else (0.5, value)
            outcomes.append(Outcome(f"u{i}", session, success, reward))
    keys = [f"{outcome.uid}_{outcome.session}_0" for outcome in outcomes]
    limit = data.draw(st.integers(2 * len(groups), len(keys)))
    dropped = surplus_keys(keys, outcomes, limit)
    kept = [outcome for key, outcome in zip(keys, outcomes, strict=True) if key not in dropped]
    assert len(kept) == limit
    for i in range(len(groups)):
        assert {0.0, 1.0} <= {getattr(outcome, differs_in) for outcome in kept if outcome.uid == f"u{i}"}


def test_lone_rollouts_are_those_of_prompts_with_no_other() -> None:
    keys = ["a_4_0", "a_4_1", "b_0_0", "b_1_0", "c_9_0"]
    assert lone_keys(keys) == {"a_4_0", "a_4_1", "c_9_0"}
    assert lone_keys([]) == set()


def test_the_score_per_prompt_covers_all_that_was_generated() -> None:
    """Filtered groups, refills, rollouts cut off and lone ones; the mean over prompts, then over rollouts."""
    step = StepAllocation(BudgetAllocator("uniform"), 2)
    step.allocate(["a", "b"], ["p", "q"])
    step.allocate(["c", "d"], ["r", "s"])
    step.add([Outcome("a", 0, 0.0, 0.0), Outcome("a", 1, 0.0, 0.0)])
    step.add([Outcome("b", 0, 1.0, 1.0), Outcome("b", 1, 0.0, 0.0)])
    step.add([Outcome("c", 0, 1.0, 3.0), Outcome("c", 1, 1.0, math.nan)])
    _, metrics = step.finish(1)
    assert metrics["coba/score_per_prompt"] == pytest.approx((0.0 + 0.5 + 3.0) / 3)
    step.allocate(["e"], ["p"])
    assert "coba/score_per_prompt" not in step.finish(2)[1]


def test_the_recorded_budgets_are_those_of_the_plain_allocator() -> None:
    script = Path(__file__).parents[1] / "golden" / "host_outcomes.py"
    recorded = json.loads(script.with_suffix(".json").read_text())
    for case in recorded["cases"]:
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in case["options"].items()}
        allocator = BudgetAllocator(case["strategy"], bounds=tuple(recorded["bounds"]), **options)
        for step in case["steps"]:
            allocation = allocator.allocate(step["prompt_ids"], sum(step["budgets"]))
            assert allocation.budgets.tolist() == step["budgets"], f"{case['strategy']} changed: run {script}"
            ids = [step["prompt_ids"][i] for i in allocation.repeat_index]
            allocator.observe(ids, [success for group in step["successes"] for success in group])
