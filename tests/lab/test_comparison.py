"""Intervals over seeds, tokens of a comparison, and which code made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from coba_rl.lab.comparison import MEAN_OF_SETTINGS, StudyResults, mean_over_seeds
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
    records = [
        LabResult(
            run.config,
            [(0, 0.1), (2, 0.2)],
            [0],
            [16],
            [{"tokens": tokens[run.setting, run.arm], "rollouts": 64}] * 2,
            1.0,
        )
        for run in study.runs()
    ]
    results = StudyResults(study, records, "")
    found = {(c.setting, c.arm): c.tokens for c in results.comparisons()}
    assert found["a", "more"] == pytest.approx(1.1)
    assert found["a", "even"] == pytest.approx(1 / 1.1)
    assert found[MEAN_OF_SETTINGS, "more"] == pytest.approx(1.2)
    assert [row["tokens"] for row in results.tidy()[:2]] == [0, 200]
    assert all("tokens" in c.as_dict() for c in results.comparisons())


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
