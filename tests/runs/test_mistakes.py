"""`coba-rl train` refuses a mistake before anything is made or paid for, and `--dry-run` refuses the same."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from coba_rl.cli import main
from coba_rl.runs.config import RunConfig, to_toml
from coba_rl.runs.folder import RunFolder
from coba_rl.tasks.policy import policy_path

HARD = str(policy_path("hard"))
MATHS = ["--model", HARD, "--dataset", "sums.jsonl"]

MISTAKES = {
    # the command line
    "unknown option": (["--stepps", "9"], "Unknown option --stepps"),
    "option with a dot too many": (["--trl.generation_kwargs.top_k", "9"], "a dot too many"),
    "flag of a wrong type": (["--steps", "many"], "--steps"),
    "seed out of range": (["--seed", "-1"], "--seed: '-1', expected a whole number from 0"),
    # the run's own sections
    "unknown strategy": (["--strategy", "knapsak"], "Did you mean 'knapsack'"),
    "strategy that cannot be imported": (["--strategy", "no.such:Thing"], "cannot be imported"),
    "unknown option of a strategy": (["--allocation.kapa", "9"], "Did you mean 'kappa'"),
    "option named as an argument of ours": (["--allocation.name", "x"], "strategy 'coba' has no such option"),
    "option named as an argument of the allocator": (
        ["--allocation.bounds", "[1, 2]"],
        "strategy 'coba' has no such option",
    ),
    "option named self": (["--allocation.self", "1"], "strategy 'coba' has no such option"),
    "option another strategy has": (
        ["--strategy", "uniform", "--allocation.kappa", "9"],
        "strategy 'uniform' has no such option",
    ),
    "option another estimator has": (
        ["--allocation.estimator", "{name = 'ability', visits = 3}"],
        "Estimator 'ability' has no option 'visits'",
    ),
    "option of a wrong type": (["--allocation.kappa", "many"], "expected a finite number"),
    "option out of range": (["--allocation.kappa", "1"], "more than 2"),
    "unknown key": (["--training.stepps", "9"], "Did you mean 'steps'"),
    "unknown section": (["--trainning.steps", "9"], "Did you mean 'training'"),
    "value of a wrong type": (["--training.steps", "many"], "training.steps"),
    "fraction": (["--training.steps", "2.9"], "'training.steps' is 2.9"),
    "switch for a number": (["--training.steps", "true"], "'training.steps' is True"),
    "seed of the section out of range": (["--training.seed", "-1"], "'training.seed' is -1"),
    "seed beyond all generators": (["--training.seed", "4294967296"], "'training.seed' is 4294967296"),
    "number without end": (["--training.learning_rate", "inf"], "finite number"),
    "no number": (["--training.temperature", "nan"], "'training.temperature' is nan"),
    "no steps": (["--training.steps", "0"], "greater than or equal to 1"),
    "bounds upside down": (["--allocation.min_budget", "200"], "1 ≤ fewest ≤ most"),
    "mean budget outside the bounds": (["--allocation.max_budget", "8"], "must lie within"),
    "updates that do not divide": (["--training.updates_per_step", "7"], "updates_per_step=7 on 1 process"),
    "micro batch that does not divide": (["--training.micro_batch_size", "7"], "does not divide"),
    "missing config file": (["nowhere.toml"], "does not exist"),
    # task, data and model
    "too few prompts": (["--training.prompts_per_step", "5000"], "1024 usable problems"),
    "empty name of a model": (["--model", ""], "policy.model"),
    "empty name of data": (["--dataset", ""], "task.dataset"),
    "data that the task does not read": (["--task.dataset", "x.jsonl"], "set task.name to 'math'"),
    "held-out data that the task does not read": (["--task.heldout", "aime24"], "set task.name to 'math'"),
    "maths without a model": (["--dataset", "sums.jsonl"], "policy.model"),
    "missing data": (["--dataset", "x.jsonl", "--model", HARD], "x.jsonl"),
    "missing model": (["--model", "./nowhere"], "cannot be loaded"),
    "folder without weights": (["--model", "empty"], "no weights"),
    "model without a chat template": (
        ["--dataset", "sums.jsonl", "--model", "base", "--training.prompts_per_step", "2"],
        "cannot write prompts that are chats",
    ),
    "fewer sums than a step takes": (MATHS, "2 usable problems"),
    # the run folder
    "folder that is a file": (["--output-dir", "sums.jsonl"], "cannot be written"),
    "folder below a file": (["--output-dir", "sums.jsonl/run"], "cannot be written"),
    "folder with a run": (["--output-dir", "taken"], "already holds a run"),
    "resume without a folder": (["--resume"], "needs --output-dir"),
    "resume of nothing": (["--resume", "--output-dir", "nowhere"], "no run to resume"),
    "resume of another configuration": (
        ["x.toml", "--resume", "--output-dir", "taken"],
        "leave the config file out",
    ),
    # TRL's own
    "unknown field of TRL": (["--trl.use_vlm", "true"], "Did you mean 'use_vllm'"),
    "field of a wrong type": (
        ["--trl.use_vllm", "maybe"],
        "'trl.use_vllm' is 'maybe': expected true or false",
    ),
    "fraction of a field": (["--trl.top_k", "2.5"], "'trl.top_k' is 2.5: expected a whole number"),
    "unknown loss": (["--trl.loss_type", "gppo"], "expected one of 'grpo', 'dr_grpo'"),
    "filter of sampling out of range": (["--trl.min_p", "7"], "'trl.min_p' is 7"),
    "settings that exclude each other": (["--trl.bf16", "True", "--trl.fp16", "True"], "TRL refuses"),
    "missing file of TRL's": (["--trl.accelerator_config", "no.json"], "no.json"),
    "unknown tracker": (["--trl.report_to", "wnadb"], "wnadb is not supported"),
    "unknown optimiser": (["--trl.optim", "adamw2"], "adamw2"),
    "schedule that lacks a setting": (["--trl.lr_scheduler_type", "cosine_with_min_lr"], "min_lr"),
    "strategy past its section": (["--trl.strategy", "uniform"], "set allocation.strategy"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a little data, a base model, an empty folder and a run; training in it fails the test."""
    sums = [{"question": f"{n}+1=", "answer": n + 1} for n in (1, 2)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums))
    shutil.copytree(HARD, tmp_path / "base", ignore=shutil.ignore_patterns("chat_template.jinja"))
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "taken").create(to_toml(RunConfig()))
    monkeypatch.chdir(tmp_path)

    def no_trainer(**_: Any) -> None:
        pytest.fail("the weights were loaded")

    monkeypatch.setattr("coba_rl.runs.trl_run.CobaGRPOTrainer", no_trainer)
    return tmp_path


def refusal(arguments: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that a mistake gets, after a look that nothing else happened."""
    before = sorted(place.rglob("*"))
    assert main(["train", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("coba-rl: ")
    assert sorted(place.rglob("*")) == before, "a mistake must leave nothing behind"
    return line


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_costs_nothing_and_the_dry_run_knows_it(
    case: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = MISTAKES[case]
    line = refusal(arguments, place, capsys)
    assert expected in line
    assert refusal([*arguments, "--dry-run"], place, capsys) == line


MISSING = {
    "torch": ([], "pip install 'coba-rl[trl]'"),
    "math_verify": (MATHS, "pip install 'coba-rl[math]'"),
    "vllm": (["--trl.use_vllm", "true"], "pip install vllm"),
    "liger_kernel": (["--trl.use_liger_kernel", "true"], "pip install liger-kernel"),
    "deepspeed": (["--trl.deepspeed", "zero3.json"], "pip install deepspeed"),
    "bitsandbytes": (["--trl.optim", "adamw_8bit"], "pip install -U bitsandbytes"),
    "wandb": (["--trl.report_to", "wandb"], "pip install wandb"),
    "peft": (["--model", "adapter"], "pip install peft"),
}


@pytest.mark.parametrize("package", MISSING)
@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_a_missing_package_is_named_before_it_is_needed(
    package: str,
    dry_run: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_config.json").write_text("{}")
    arguments, command = MISSING[package]
    monkeypatch.setitem(sys.modules, package, None)
    line = refusal([*arguments, *dry_run], place, capsys)
    assert package in line
    assert command in line


def test_a_trainer_that_cannot_be_made_leaves_no_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*, args: Any, **_: Any) -> None:
        Path(args.output_dir).mkdir(parents=True)  # as the trainer does
        raise ValueError("such weights cannot be trained")

    monkeypatch.setattr("coba_rl.runs.trl_run.CobaGRPOTrainer", broken)
    assert "such weights" in refusal(["--output-dir", "new/run"], place, capsys)


def test_a_dry_run_of_a_good_configuration_prints_it_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    assert main(["train", "--steps", "7", "--output-dir", "new/run", "--dry-run"]) == 0
    assert "steps = 7" in capsys.readouterr().out
    assert sorted(place.rglob("*")) == before
