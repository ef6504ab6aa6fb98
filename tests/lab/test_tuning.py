"""Every arm runs on the learning rate that is best on the tuning seeds, and the test seeds choose nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.cli.app import main
from coba_rl.errors import ConfigError
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import Study, StudyRun, check_study
from coba_rl.report.study_tables import summary_tables, tuning_table

STUDY = {
    "title": "Tuned", "question": "?", "baselines": ["even"], "seeds": [0, 1], "base": {"tokens": 20},
    "settings": {"hard": {}, "moderate": {"regime": "moderate"}},
    "arms": {"even": {"strategy": "uniform"}, "coba": {"strategy": "coba"}},
    "tune": {"learning_rate": [1e-4, 2e-4, 4e-4], "seeds": [100, 101]},
}  # fmt: skip
Score = Callable[[StudyRun], float]


def tuned(**changes: object) -> Study:
    tune = {**STUDY["tune"], **changes}
    return check_study({**STUDY, "tune": tune}, "tuned")


def finished(study: Study, score: Score, skipped: tuple[str, ...] = ()) -> StudyPlan:
    """A plan all of whose runs are finished, but those of some keys, each with the final accuracy that it scores."""

    def find(run: StudyRun) -> LabResult | None:
        curve = [(0, 0.0), (2, score(run))]
        steps = [{"tokens": 10, "rollouts": 64}] * 2
        return None if run.key in skipped else LabResult(run.config, curve, [0], [16], steps, 1.0)

    return StudyPlan(study, find)


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_the_choice_rests_on_the_tuning_seeds_alone(scores: list[float], others: list[float]) -> None:
    study = tuned()
    rates = study.tune.learning_rate

    def score(run: StudyRun) -> float:
        place = rates.index(run.config.learning_rate)
        return (scores if run.phase == "tuning" else others)[2 * place + run.config.seed % 100]

    plan = finished(study, score)
    means = np.reshape(scores, (3, 2)).mean(axis=1)
    for cell in study.cells:
        best = plan.tuning(*cell).best
        assert means[rates.index(best)] == pytest.approx(means.max(), abs=1e-12)
        assert [run.config.learning_rate for run in plan.tests(*cell)] == [best, best]
        assert [run.config.seed for run in plan.tests(*cell)] == study.seeds


def test_each_arm_has_its_own_rate_in_each_setting() -> None:
    best = {
        ("hard", "even"): 1e-4,
        ("hard", "coba"): 2e-4,
        ("moderate", "even"): 4e-4,
        ("moderate", "coba"): 1e-4,
    }
    plan = finished(tuned(), lambda run: float(run.config.learning_rate == best[run.setting, run.arm]))
    assert {cell: plan.tuning(*cell).best for cell in best} == best
    assert {cell for cell in best if plan.tuning(*cell).is_on_edge} == {
        c for c, rate in best.items() if rate != 2e-4
    }


def test_equal_scores_choose_the_lowest_rate() -> None:
    assert finished(tuned(), lambda _: 0.5).tuning("hard", "coba").best == 1e-4


@pytest.mark.parametrize(
    ("peak", "best", "tried", "edge"),
    [
        (2e-4, 2e-4, [1e-4, 2e-4, 4e-4], False),
        (8e-4, 8e-4, [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3], False),
        (9.9, 3.2e-3, [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3], True),
        (5e-5, 5e-5, [5e-5, 1e-4, 2e-4, 4e-4], True),  # half of it is below the limit
    ],
)
def test_the_grid_grows_until_the_best_is_inside_or_at_the_limit(
    peak: float, best: float, tried: list[float], edge: bool
) -> None:
    study = tuned(within=[5e-5, 3.2e-3])
    plan = finished(study, lambda run: -abs(np.log(run.config.learning_rate / peak)))
    tuning = plan.tuning("hard", "coba")
    assert (tuning.best, sorted(tuning.scores), tuning.is_on_edge) == (best, tried, edge)


def test_no_rate_is_chosen_while_a_tuning_run_is_missing() -> None:
    study = tuned()
    (missing,) = (
        run for run in study.runs()
        if (run.setting, run.arm, run.config.seed, run.config.learning_rate) == ("hard", "coba", 101, 4e-4)
    )  # fmt: skip
    plan = finished(study, lambda _: 0.5, skipped=(missing.key,))
    assert plan.tests("hard", "coba") == []
    assert len(plan.tests("hard", "even")) == 2
    assert missing in plan.runs()
    assert plan.num_undecided() == 2
    assert len(plan.runs()) + plan.num_undecided() == study.num_runs


def test_tuning_runs_come_first_setting_by_setting() -> None:
    runs = finished(tuned(), lambda _: 0.5).runs()
    order = [(run.setting, run.phase) for run in runs]
    assert sorted(set(order), key=order.index) == [
        ("hard", "tuning"), ("hard", "test"), ("moderate", "tuning"), ("moderate", "test"),
    ]  # fmt: skip
    assert len(runs) == len({run.key for run in runs}) == tuned().num_runs
    tests = [(run.config.seed, run.arm) for run in runs if (run.setting, run.phase) == ("hard", "test")]
    assert tests == [(0, "even"), (0, "coba"), (1, "even"), (1, "coba")]  # whole pairs
    only = finished(tuned(), lambda _: 0.5).runs([("moderate", "coba")])
    assert {(run.setting, run.arm) for run in only} == {("moderate", "coba")}


def test_the_target_is_chosen_on_the_tuning_seeds() -> None:
    for test_score in (0.35, 0.95):
        plan = finished(tuned(), lambda run, s=test_score: 0.65 if run.phase == "tuning" else s)
        assert StudyResults(plan, "").target("hard") == 0.6


def test_the_tables_say_what_was_chosen_and_what_is_on_the_edge() -> None:
    scores = {1e-4: 0.2, 2e-4: 0.6, 4e-4: 0.4}
    plan = finished(tuned(), lambda run: scores[run.config.learning_rate] + 0.001 * run.config.seed)
    results = StudyResults(plan, "")
    table = tuning_table(results, "hard")
    assert table.columns == ["arm", "1e-4", "2e-4", "4e-4", "chosen"]
    assert [cell.strip("[]") for cell in table.rows[0][1:4]] == ["15.0", "35.0", "25.0"]
    assert [row[4] for row in table.rows] == ["2e-4", "2e-4"]
    assert all(row[2].startswith("[") for row in table.rows)
    assert "edge" not in str(summary_tables(results))
    edge = StudyResults(finished(tuned(), lambda run: run.config.learning_rate), "")
    assert "4e-4 (edge)" in str(summary_tables(edge))
    assert {row["phase"] for row in results.tidy()} == {"tuning", "test"}
    chosen = {row["learning_rate"] for row in results.tidy() if row["phase"] == "test"}
    assert chosen == {2e-4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [1, 100]}, "those of tuning included; expected each once"),
        ({"base": {"learning_rate": 1e-4}}, "learning_rate = 0.0001 in a study with"),
        ({"arms": {"even": {}, "coba": {"tokens_of": "even"}}}, "tokens_of = 'even' in a study with"),
        ({"tune": {"seeds": [7]}}, "'tune.learning_rate' is missing"),
        ({"tune": {"learning_rate": [1e-4], "seeds": []}}, "tune.seeds"),
        ({"tune": {"learning_rate": [1e-4], "seeds": [7], "whithin": [1, 2]}}, "Did you mean 'within'"),
        ({"tune": {"learning_rate": [1e-4, 1e-4], "seeds": [7]}}, "expected each once"),
        ({"tune": {"learning_rate": [1e-4], "seeds": [7], "within": [2e-4, 3e-4]}}, "tune.within is"),
        ({"tune": {"learning_rate": [0.0], "seeds": [7]}}, "tune.learning_rate"),
        ({"base": {"tokens": 0}}, "'tokens' is 0"),
        ({"targets": [1.5]}, "targets"),
    ],
)
def test_mistakes_are_named_before_anything_runs(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_study({**STUDY, **change}, "tuned")


SMALL = """\
title = "Small"
question = "Does it tune?"
baselines = ["even"]
seeds = [0, 1]
[base]
steps = 3
tokens = 1500
train_prompts = 128
prompts_per_step = 128
rollouts_per_prompt = 2
min_budget = 1
evaluate_every = 3
[tune]
learning_rate = [1e-4, 2e-4]
within = [5e-5, 4e-4]
seeds = [100]
[settings.moderate]
regime = "moderate"
[arms.even]
strategy = "uniform"
[arms.variance]
strategy = "variance"
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL, encoding="utf-8")
    return file


def test_a_study_is_tuned_resumed_and_made_in_pieces(small: Path, tmp_path: Path, capsys) -> None:
    command = ["study", str(small), "--output-dir", str(tmp_path / "out"), "--workers", "2"]
    folder, store = tmp_path / "out" / "small", tmp_path / "out" / "runs"
    assert main([*command, "--arms", "variance"]) == 0
    assert len(list(store.iterdir())) == 3 + 2  # of two rates the best is on an edge: a third is tried
    assert "not run" in (folder / "tables.md").read_text(encoding="utf-8")
    assert main(command) == 0
    error = capsys.readouterr().err
    assert "5/5 runs" in error
    assert "10/10 runs" in error
    written = {file.name: file.read_bytes() for file in folder.iterdir()}
    files = sorted(store.iterdir())
    assert len(files) == 10
    _check_rows(folder)
    for file in files[::2]:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in files[1::2]}
    assert main([*command, "--report-only"]) == 0
    assert sorted(store.iterdir()) == files[1::2]
    assert main(command) == 0
    assert {file: file.stat().st_mtime_ns for file in files[1::2]} == kept
    again = {file.name: file.read_bytes() for file in folder.iterdir()}
    different = {name for name in written if written[name] != again[name]}
    assert different <= {"summary.json"}  # its seconds


def _check_rows(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    tuning = {(row["arm"], row["learning_rate"]) for row in rows if row["phase"] == "tuning"}
    assert sorted(arm for arm, _ in tuning) == ["even"] * 3 + ["variance"] * 3
    assert all(int(row["seed"]) == 100 for row in rows if row["phase"] == "tuning")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for told in summary["tuning"]:
        rates = {
            float(row["learning_rate"]) for row in rows if (row["arm"], row["phase"]) == (told["arm"], "test")
        }
        assert rates == {told["best"]}
        assert told["best"] == float(max(told["scores"], key=told["scores"].__getitem__))
    table = (folder / "comparisons.csv").read_text(encoding="utf-8")
    measures = {row["measure"] for row in csv.DictReader(table.splitlines())}
    assert {"final", "at equal tokens", "area over tokens"} <= measures
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.index("Accuracy at equal tokens − even, points") < page.index("Held-out accuracy by tokens")
    assert page.index("Held-out accuracy by tokens") < page.index("Learning rates</h2>")


def test_only_a_setting_or_an_arm_of_the_study_can_be_run(small: Path, tmp_path: Path, capsys) -> None:
    assert main(["study", str(small), "--settings", "modrate", "--output-dir", str(tmp_path / "out")]) == 2
    assert (
        "--settings is 'modrate', which is not in the study. Did you mean 'moderate'"
        in capsys.readouterr().err
    )
