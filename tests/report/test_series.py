"""Windows, bins and transitions against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.files import append_jsonl
from coba_rl.records import AllocationRecord, append_records
from coba_rl.report.records import Allocations, read_run
from coba_rl.report.series import (
    BIN_EDGES,
    BIN_NAMES,
    Windows,
    bin_place,
    budget_by_bin,
    generated_tokens,
    moving_average,
    rollouts_by_bin,
    tokens_so_far,
    visit_transitions,
)

rates = st.one_of(st.none(), st.sampled_from([*BIN_EDGES]), st.floats(0.0, 1.0))
records = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from("abcd"), rates, st.integers(0, 9), st.floats(0.0, 1.0)),
    min_size=1,
    max_size=60,
).map(
    lambda rows: [
        AllocationRecord(s, i, pass_rate=p, value=None, budget=b, successes=b * q, attempts=b)
        for s, i, p, b, q in sorted(rows, key=lambda row: row[0])
    ]
)


@given(first=st.integers(1, 50), length=st.integers(1, 200), most=st.integers(1, 60))
def test_windows_cover_every_step_once(first: int, length: int, most: int) -> None:
    windows = Windows.over(first, first + length - 1, most)
    sizes = np.diff(windows.edge_W)
    assert len(windows) == min(most, length)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    place = windows.place(np.arange(first, first + length))
    assert np.bincount(place, minlength=len(windows)).tolist() == sizes.tolist()


@given(values=st.lists(st.one_of(st.just(np.nan), st.floats(-5, 5)), max_size=30), width=st.integers(1, 9))
def test_the_moving_average_is_the_mean_of_the_neighbours(values: list[float], width: int) -> None:
    half = width // 2
    for i, mean in enumerate(moving_average(np.array(values), width).tolist()):
        near = [v for v in values[max(0, i - half) : i + half + 1] if not np.isnan(v)]
        assert mean == pytest.approx(np.mean(near), abs=1e-9) if near else np.isnan(mean)


@given(rows=records)
def test_no_rollout_is_lost_between_the_bins(rows: list[AllocationRecord]) -> None:
    allocations = Allocations.from_records(rows)
    windows = Windows.over(1, 30, most=7)
    budgets = budget_by_bin(allocations, windows)
    assert budgets.prompts_BW.sum() == len(rows)
    assert budgets.rollouts_BW.sum() == sum(row.budget for row in rows)
    for window in range(len(windows)):
        low, high = windows.edge_W[window], windows.edge_W[window + 1]
        spent = sum(row.budget for row in rows if low <= row.step < high)
        assert budgets.shares_BW[:, window].sum() == pytest.approx(1.0 if spent else 0.0)
    table = rollouts_by_bin(allocations)
    assert sum(row.share_of_prompts for row in table) == pytest.approx(1.0)
    for row in table:
        here = [r for r in rows if _bin_of(r.pass_rate) == row.pass_rate]
        assert row.mean_budget == pytest.approx(np.mean([r.budget for r in here]))
        attempts = sum(r.attempts for r in here)
        assert (row.success is None) == (attempts == 0)
        if attempts:
            assert row.success == pytest.approx(sum(r.successes for r in here) / attempts)


def _bin_of(rate: float | None) -> str:
    if rate is None:
        return "unknown"
    at_or_below = [i for i, low in enumerate(BIN_EDGES[:-1]) if low <= rate]
    return BIN_NAMES[at_or_below[-1] + 1]


def test_a_pass_rate_of_one_is_in_the_last_bin() -> None:
    assert bin_place(np.array([1.0, 0.95, 0.9499])).tolist() == [6, 6, 5]


def test_transitions_compare_the_first_judged_visit_with_the_last() -> None:
    visits = [
        ("a", 0, 4),
        ("b", 0, 0),
        ("c", 4, 4),
        ("b", 1, 2),
        ("a", 2, 4),
        ("b", 4, 4),
        ("a", 4, 4),
        ("d", 1, 1),
    ]
    rows = [
        AllocationRecord(i, name, pass_rate=None, value=None, budget=n, successes=float(s), attempts=n)
        for i, (name, s, n) in enumerate(visits)
    ]
    transitions = visit_transitions(Allocations.from_records(rows))
    assert transitions is not None
    wanted = np.zeros((5, 5), dtype=int)
    wanted[0, 4] = 1  # a, from none to all
    wanted[2, 4] = 1  # b, whose first visit brought no attempt
    assert transitions.counts.tolist() == wanted.tolist()
    assert visit_transitions(Allocations.from_records(rows[:3])) is None


@pytest.mark.parametrize("name", ["completions/mean_length", "response_length/mean"])
def test_tokens_are_budgets_times_the_mean_length_of_their_step(name: str, tmp_path: Path) -> None:
    given = {1: (4, 8), 3: (2,)}
    for step, budgets in given.items():
        rows = [AllocationRecord(step, "a", None, None, budget, 0.0, budget) for budget in budgets]
        append_records(tmp_path / "allocations.jsonl", rows)
    append_jsonl(tmp_path / "metrics.jsonl", [{"step": 1, name: 2.5}, {"step": 2, name: 9.0}])
    assert tokens_so_far(read_run(tmp_path)) is None, "the length of step 3 is not known"
    append_jsonl(tmp_path / "metrics.jsonl", [{"step": 3, name: 4.0}])
    assert tokens_so_far(read_run(tmp_path)).tolist() == [0.0, 30.0, 30.0, 38.0]  # type: ignore[union-attr]
    assert generated_tokens(read_run(tmp_path)) == 38
