"""The command behind `make train-verl`, on a small task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coba_rl.cli.progress import TrainingProgress
from coba_rl.cli.summary import print_summary
from coba_rl.errors import ConfigError
from coba_rl.records import AllocationRecord, EvaluationRecord, read_records
from coba_rl.runs.config import RunConfig, TaskConfig
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.verl_run import VerlRun, verl_config

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


def small() -> RunConfig:
    """Two steps, each of all 32 prompts."""
    task = TaskConfig.model_validate({"name": "prefix-scan", "num_train": 32, "num_heldout": 16})
    return verl_config("coba", steps=2, seed=0).model_copy(update={"task": task})


@pytest.mark.timeout(1300)
def test_it_trains_and_reports_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = small(), RunFolder(tmp_path / "run")
    run = VerlRun(config, folder)
    run.prepare()
    summary = run.train(1200, TrainingProgress())
    assert folder.read_summary() == summary
    assert summary.rollouts == 2 * config.training.prompts_per_step * config.training.rollouts_per_prompt
    assert summary.tokens is not None
    assert 2 <= summary.tokens / summary.rollouts <= run.task.max_completion_length
    # The second step sees the same prompts again, with a history.
    second = [r for r in read_records(folder.allocations_file, AllocationRecord) if r.step == 2]
    assert len({record.budget for record in second}) > 2
    assert all(record.pass_rate is not None for record in second)
    assert [record.step for record in read_records(folder.heldout_file, EvaluationRecord)] == [0, 2]
    assert summary.heldout.num_problems == 16
    assert summary.heldout.before is not None
    assert 0 <= summary.heldout.before.value <= 1
    assert (folder.path / "global_step_2").is_dir()
    print_summary(summary, as_json=False)
    shown = capsys.readouterr()
    assert "step 2/2" in shown.err
    assert "Held-out accuracy, avg@2 over 16 problems" in shown.out
    # matplotlib is not in verl's environment; where it is, the page is written.
    assert "no report: reports need matplotlib" in shown.err or (folder.path / "report.html").is_file()
    with pytest.raises(ConfigError, match="already holds a run"):
        run.prepare()


@pytest.mark.timeout(1300)
def test_a_job_that_fails_shows_why(tmp_path: Path) -> None:
    run = VerlRun(verl_config("coba", steps=2, seed=0), RunFolder(tmp_path / "run"), ("data.no_such_key=1",))
    run.prepare()
    with pytest.raises(ConfigError, match="verl ended with code") as caught:
        run.train(1200)
    assert "no_such_key" in "".join(caught.value.__notes__)


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = VerlRun(verl_config("coba", steps=2, seed=0), RunFolder(tmp_path / "run"))
    run.prepare()
    with pytest.raises(ConfigError, match="--timeout"):
        run.train(0.1)


def test_accuracy_is_read_from_what_verl_wrote(tmp_path: Path) -> None:
    run = VerlRun(small(), RunFolder(tmp_path))
    problems = run.task.heldout_problems()
    for step, right in ((0, 0.0), (10, 1.0), (2, 0.5)):
        lines = [f'{{"input": " {p.prompt}\\n", "acc": {right}}}\n' for p in problems for _ in range(2)]
        (tmp_path / "heldout").mkdir(exist_ok=True)
        (tmp_path / "heldout" / f"{step}.jsonl").write_text("".join(lines))
    expected = EvaluationRecord(0, "verl", {problem.prompt_id: 0.0 for problem in problems})
    first, second, third = run.evaluations()
    assert first == expected
    assert second == replace(expected, step=2, accuracy=dict.fromkeys(expected.accuracy, 0.5))
    assert third.step == 10


def test_the_configuration_names_what_was_decided_and_no_more(tmp_path: Path) -> None:
    import tomllib

    run = VerlRun(verl_config("knapsack", steps=7, seed=3), RunFolder(tmp_path / "run"))
    run.prepare()
    written = tomllib.loads(run.folder.config_file.read_text())
    assert written["allocation"] == {"strategy": "knapsack", "min_budget": 2, "max_budget": 128}
    assert (written["training"]["steps"], written["training"]["seed"]) == (7, 3)
    assert RunConfig.model_validate(written) == run.config
    settings = run.settings()
    assert settings["+algorithm.coba.strategy"] == "knapsack"
    assert settings["trainer.default_local_dir"] == run.folder.path
    assert (settings["trainer.total_training_steps"], settings["data.seed"]) == (7, 3)
