"""Intervals over seeds, tokens of a comparison, and which code made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.lab.comparison import MEAN_OF_SETTINGS, StudyResults, mean_over_seeds
from coba_rl.lab.config import LabConfig
from coba_rl.lab.learning_curve import (
    accuracy_at,
    has_collapsed,
    mean_accuracy,
    shared_tokens,
    tokens_to,
)
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.provenance import made_by
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import check_study


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_few_seeds_hold_the_mean_as_often_as_they_say(seeds: int) -> None:
    values = np.random.default_rng(0).normal(0.7, 0.02, size=(4000, seeds))
    intervals = [mean_over_seeds(row) for row in values]
    covered = np.mean([i.low <= 0.7 <= i.high for i in intervals])
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)
    assert all(i.low < i.value < i.high for i in intervals)


def test_one_seed_has_no_interval() -> None:
    estimate = mean_over_seeds([0.5])
    assert estimate.value == 0.5
    assert np.isnan(estimate.low)
    assert np.isnan(estimate.high)


def test_every_comparison_states_tokens() -> None:
    study = check_study(
        {
            "title": "t", "question": "?", "baselines": ["even", "more"], "seeds": [0, 1],
            "settings": {"a": {}, "b": {"regime": "moderate"}},
            "arms": {"even": {"strategy": "uniform"}, "more": {"strategy": "coba"}},
        },
        "t",
    )  # fmt: skip
    tokens = {("a", "even"): 100, ("a", "more"): 110, ("b", "even"): 10, ("b", "more"): 13}
    records = {
        run.key: measured(run.config, [0.1, 0.2], tokens[run.setting, run.arm]) for run in study.runs()
    }
    results = StudyResults(StudyPlan(study, lambda run: records[run.key]), "")
    found = {(c.setting, c.arm): c.tokens for c in results.comparisons()}
    assert found["a", "more"] == pytest.approx(1.1)
    assert found["a", "even"] == pytest.approx(1 / 1.1)
    assert found[MEAN_OF_SETTINGS, "more"] == pytest.approx(1.2)
    assert [row["tokens"] for row in results.tidy()[:2]] == [0, 100]
    assert all("tokens" in c.as_dict() for c in results.comparisons())


def measured(config: LabConfig, accuracy: list[float], tokens: int = 10) -> LabResult:
    """A run measured before it began and after each step, whose steps generate so many tokens."""
    steps = [{"tokens": tokens, "rollouts": config.rollouts_per_step}] * (len(accuracy) - 1)
    return LabResult(config, list(enumerate(accuracy)), [0], [16], steps, 1.0)


# --- Over tokens ---

CONFIG = LabConfig(tokens=40)
CURVES = st.lists(st.integers(0, 100).map(lambda percent: percent / 100), min_size=2, max_size=8)


@given(CURVES, st.floats(0.5, 90.0))
def test_the_mean_is_that_of_the_accuracy_at_each_token(accuracy: list[float], tokens: float) -> None:
    record = measured(CONFIG, accuracy)
    grid = np.linspace(0.0, tokens, 20_001)
    at = [accuracy_at(record, token) for token in grid[:: len(grid) - 1]]
    assert at[0] == accuracy[0]
    curve = np.interp(grid, 10.0 * np.arange(len(accuracy)), accuracy)
    assert at[1] == pytest.approx(curve[-1])
    assert mean_accuracy(record, tokens) == pytest.approx((curve[:-1] + curve[1:]).mean() / 2, abs=1e-6)


@given(CURVES, st.floats(0.01, 1.0))
def test_a_target_is_reached_at_the_first_token_at_which_accuracy_is_as_high(
    accuracy: list[float], target: float
) -> None:
    record = measured(CONFIG, accuracy)
    needed = tokens_to(record, target)
    if max(accuracy) < target:
        assert needed == np.inf
        return
    assert accuracy_at(record, needed) == pytest.approx(max(target, accuracy[0]))
    before = [token for token in np.linspace(0.0, needed, 200) if token < needed]
    assert all(accuracy_at(record, token) < target + 1e-9 for token in before)


@pytest.mark.parametrize(
    ("accuracy", "collapsed"),
    [
        ([0.1, 0.9, 0.71], False),
        ([0.1, 0.9, 0.69], True),  # more than 20 points below its best
        ([0.1, 0.12, 0.09], True),  # below where it began
        ([0.1, 0.1], False),
    ],
)
def test_a_run_that_loses_what_it_had_has_collapsed(accuracy: list[float], collapsed: bool) -> None:
    assert has_collapsed(measured(CONFIG, accuracy)) == collapsed


def test_runs_are_compared_at_the_tokens_they_were_to_generate_or_the_fewest_they_did() -> None:
    long, short = [0.1] * 9, [0.1] * 3
    assert shared_tokens([measured(CONFIG, long), measured(CONFIG, short)]) == 40
    assert shared_tokens([measured(LabConfig(), long), measured(LabConfig(), short)]) == 20


def raced(curves: dict[str, list[list[float]]], **changes: object) -> StudyResults:
    """Arms with the curve of each seed, in one setting of 40 tokens."""
    arms = {name: {"options": {"kappa": 5.0 + i}} for i, name in enumerate(curves)}
    values = {
        "title": "t", "question": "?", "baselines": ["even"], "seeds": [0, 1, 2], "base": {"tokens": 40},
        "settings": {"a": {}}, "arms": arms, "targets": [0.5, 0.75],
    }  # fmt: skip
    study = check_study({**values, **changes}, "t")
    records = {run.key: measured(run.config, curves[run.arm][run.config.seed]) for run in study.runs()}
    return StudyResults(StudyPlan(study, lambda run: records[run.key]), "")


def test_tokens_to_a_target_are_compared_by_their_ratio() -> None:
    even = [[0.0, 0.25, 0.5, 0.55, 0.6]] * 3
    results = raced({"even": even, "fast": [[0.0, 0.5, 0.5, 0.5, 0.8]] * 3})
    found = results.tokens_comparison("a", "fast", "even", 0.5)
    assert found.ratio.value == pytest.approx(0.5)
    assert (found.wins, found.reached, found.baseline_reached) == (3, 3, 3)
    assert results.target("a") == 0.5  # no run of the baseline reached 0.75
    assert results.targets("a") == [0.5, 0.75]


def test_a_run_that_never_got_there_counts_with_all_its_tokens_and_is_counted() -> None:
    there, never = [0.0, 0.25, 0.5, 0.5, 0.5], [0.0, 0.1, 0.1, 0.1, 0.1, 0.9]  # got there too late
    results = raced({"even": [there] * 3, "slow": [there, never, never]})
    tokens_N, reached = results.tokens_needed("a", "slow", 0.5)
    assert tokens_N.tolist() == [20.0, 40.0, 40.0]
    assert reached == 1
    found = results.tokens_comparison("a", "slow", "even", 0.5)
    assert found.difference.value == pytest.approx(np.log([1.0, 2.0, 2.0]).mean())
    assert (found.wins, found.seeds, found.reached) == (0, 3, 1)
    rows = {row["measure"]: row for row in (c.as_dict() for c in results.comparisons())}
    assert rows["tokens to 0.5"]["reached"] == 1
    assert "tokens to 0.75" not in rows  # nobody got there within the tokens


def test_a_target_below_the_start_is_none() -> None:
    results = raced({"even": [[0.6, 0.7, 0.7]] * 3})
    assert results.target("a") is None
    assert results.targets("a") == []


def git(folder: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True)


def test_results_name_the_commit_of_the_code_and_whether_it_was_changed(tmp_path: Path) -> None:
    package = tmp_path / "src"
    package.mkdir()
    code = package / "__init__.py"
    code.write_text("", encoding="utf-8")
    assert "commit" not in made_by(package)
    git(tmp_path, "init")
    assert "commit" not in made_by(package)  # installed inside the checkout of something else
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    (tmp_path / "results.csv").write_text("written beside the code", encoding="utf-8")
    assert " at commit " in made_by(package)
    assert "uncommitted" not in made_by(package)
    code.write_text("changed", encoding="utf-8")
    assert "with uncommitted changes" in made_by(package)
