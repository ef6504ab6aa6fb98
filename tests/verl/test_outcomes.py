"""What came back, as verl has it, and what of it is left out of a step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.hosts.session import Outcome
from coba_rl.hosts.verl.filtering import lone_keys, surplus_keys
from coba_rl.hosts.verl.outcomes import read_outcomes, success_of

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
    rows["u_0_1"]["response_mask"][2] = 0  # written by a tool
    tags = [{"is_padding": key.startswith("pad")} for key in rows]
    assert read_outcomes(list(rows), tags, success_key=None) == [
        Outcome("u", 0, 1.0, 0.5, 3 + 4),
        Outcome("u", 1, 0.0, 0.0, 3),
        Outcome("v", 10, 1.0, 1.0, 2),
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
    keys = [f"{outcome.group}_{outcome.index}_0" for outcome in outcomes]
    limit = data.draw(st.integers(2 * len(groups), len(keys)))
    dropped = surplus_keys(keys, outcomes, limit)
    kept = [outcome for key, outcome in zip(keys, outcomes, strict=True) if key not in dropped]
    assert len(kept) == limit
    for i in range(len(groups)):
        assert {0.0, 1.0} <= {getattr(outcome, differs_in) for outcome in kept if outcome.group == f"u{i}"}


def test_lone_rollouts_are_those_of_prompts_with_no_other() -> None:
    keys = ["a_4_0", "a_4_1", "b_0_0", "b_1_0", "c_9_0"]
    assert lone_keys(keys) == {"a_4_0", "a_4_1", "c_9_0"}
    assert lone_keys([]) == set()
