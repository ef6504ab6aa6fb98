"""`coba-rl bench`: what it measures is what it says, and the promises of speed, as ratios."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.allocation.solvers import fast, heap
from coba_rl.allocation.value import KnapsackGains, coba_gains
from coba_rl.bench.allocator import allocator_that_knows, prompt_ids, used_allocator
from coba_rl.bench.race import HIGH, LOW, MEAN_BUDGET, Effort, pass_rates, race
from coba_rl.bench.solvers import (
    ALPHA,
    BETA,
    TAU,
    is_optimal,
    printed_heap,
    value_in_floats,
    value_in_numpy,
)
from coba_rl.cli import bench as command
from coba_rl.cli import main

TINY = Effort(sizes=(8, 512, 600), tables=(100, 200), rounds=2, seconds=0.0)
EFFORT = Effort(rounds=7, seconds=2.0)


def gains_of(num_prompts: int):
    return coba_gains(pass_rates(num_prompts), ALPHA, BETA, TAU)


def ratio(slow: Callable[[], object], quick: Callable[[], object]) -> float:
    return race({"quick": quick, "slow": slow}, "quick", 0, EFFORT)[1].ratio


# --- Promises ---


def test_fast_is_hundreds_of_times_as_fast_as_the_printed_heap() -> None:
    p_P = pass_rates(512)
    printed = partial(printed_heap, value_in_numpy, p_P, 8192)
    # 608 measured on a quiet machine (docs/speed/tables.md); a busy one takes its share.
    assert ratio(printed, partial(fast, gains_of(512), 8192, LOW, HIGH)) > 300


def test_knapsack_costs_at_most_5_times_as_much_as_coba() -> None:
    p_P = pass_rates(4096)
    knapsack = lambda: fast(KnapsackGains(p_P), MEAN_BUDGET * 4096, LOW, HIGH)  # noqa: E731
    assert ratio(knapsack, lambda: fast(gains_of(4096), MEAN_BUDGET * 4096, LOW, HIGH)) < 5


def test_cost_grows_no_faster_than_the_batch() -> None:
    small, large = (partial(fast, gains_of(m), MEAN_BUDGET * m, LOW, HIGH) for m in (2_000, 64_000))
    assert ratio(large, small) < 1.5 * 32


def test_observing_costs_the_same_with_many_histories() -> None:
    ids = [f"prompt {i}" for i in range(256) for _ in range(8)]
    scores = np.arange(len(ids)) % 2
    few, many = (partial(allocator_that_knows(n).observe, ids, scores) for n in (1_000, 1_000_000))
    assert ratio(many, few) < 2


@pytest.mark.parametrize("strategy", ["coba", "knapsack"])
def test_allocate(benchmark: Callable, strategy: str) -> None:
    ids = prompt_ids(512)
    assert benchmark(used_allocator(strategy, ids).allocate, ids, 8192).total == 8192


def test_observe(benchmark: Callable) -> None:
    ids = prompt_ids(512)
    rollouts = [prompt_id for prompt_id in ids for _ in range(MEAN_BUDGET)]
    allocator = used_allocator("coba", ids)
    benchmark(allocator.observe, rollouts, [0.0, 1.0] * 4096)
    assert allocator.metrics()["coba/success_per_rollout"] == 0.5


# --- The measurement ---


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8), st.integers(0, 60))
def test_the_printed_heap_finds_the_best_budgets(rates: list[float], surplus: int) -> None:
    p_P, total = np.array(rates), LOW * len(rates) + surplus
    gains = coba_gains(p_P, ALPHA, BETA, TAU)
    best = heap(gains, total, LOW, HIGH)
    assert is_optimal(gains, best)
    for value in (value_in_floats, value_in_numpy):
        budgets = printed_heap(value, p_P, total)
        assert budgets.sum() == total
        worth = [
            sum(value(b, p) for b, p in zip(found.tolist(), rates, strict=True)) for found in (budgets, best)
        ]
        assert worth[0] == pytest.approx(worth[1], rel=1e-9)


def test_budgets_that_are_not_the_best_are_noticed() -> None:
    gains = gains_of(64)
    budgets = heap(gains, 1024, LOW, HIGH)
    budgets[budgets.argmax()] -= 1
    budgets[budgets.argmin()] += 1
    assert not is_optimal(gains, budgets)


def test_a_race_gives_ratios_to_its_reference() -> None:
    calls = {
        "short": lambda: sum(range(50_000)),
        "long": lambda: sum(range(500_000)),
        "idle": lambda: time.sleep(0.01),
    }
    short, long, idle = race(calls, "short", 3, Effort(rounds=5, seconds=9.0))
    assert short.ratio == short.low == short.high == 1.0
    assert long.low <= long.ratio <= long.high
    assert 4 < long.ratio < 25
    assert long.prompts == 3
    assert idle.seconds < 0.005


def test_the_command_measures_prints_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coba_rl.bench.QUICK", TINY)
    assert main(["bench", "--quick", "--json", "--output-dir", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "results.json").read_text())
    parts = printed["parts"]
    assert list(parts) == ["solvers", "strategies", "calls", "histories", "training"]
    assert all(
        row["seconds"] > 0 and row["low"] <= row["high"] for part in parts.values() for row in part["rows"]
    )
    facts = parts["solvers"]["facts"]
    assert all(facts[f"M = {m}: budgets are the heap's"] is True for m in (8, 512, 600))
    fast_at = {row["prompts"]: row["seconds"] for row in parts["solvers"]["rows"] if row["name"] == "fast"}
    growth = facts["M = 512 to 600: growth of the time of `fast` to that of M"]
    assert growth == pytest.approx(fast_at[600] / fast_at[512] * 512 / 600)
    assert {row["name"] for row in parts["strategies"]["rows"]} >= {"coba", "knapsack", "coba-release"}
    assert [row["prompts"] for row in parts["histories"]["rows"]] == [100, 200]
    assert {name.split(": ")[1] for name in parts["histories"]["facts"]} == {
        "bytes a prompt",
        "saving, s",
        "loading, s",
        "files, MB",
    }
    page = (tmp_path / "report.html").read_text()
    assert page.count("<table>") == 5
    assert (tmp_path / "scaling.svg").read_text().strip() in page
    tables = (tmp_path / "tables.md").read_text()
    row = next(row for row in parts["solvers"]["rows"] if row["name"] == "heap" and row["prompts"] == 512)
    assert f" {row['ratio']:.3g}× |" in tables  # of a single round there is no spread


@pytest.mark.trl
def test_hosts_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "_QUICK_HOSTS", (2, 2))
    assert main(["bench", "--quick", "--hosts"]) == 0
    shown = capsys.readouterr().out
    for name in ("TRL", "TRL again", "uniform", "coba to uniform", "uniform to TRL: overhead, at most, %"):
        assert name in shown


@pytest.mark.trl
def test_a_host_that_fails_ends_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    from coba_rl.bench import hosts

    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(hosts.CobaGRPOTrainer, "_finish", broken)
    with pytest.raises(ValueError, match="broken"):
        hosts.measure_hosts(2, 2)
