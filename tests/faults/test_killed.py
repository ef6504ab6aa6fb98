"""A run that is killed again and again ends as one that was left alone."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, summary, train, train_here
from safetensors.numpy import load_file

from coba_rl.files import read_jsonl
from coba_rl.records import EvaluationRecord, read_records
from coba_rl.runs.folder import RunFolder

pytestmark = [pytest.mark.trl, pytest.mark.timeout(7200)]

SCRIPT = Path(__file__).parent / "dying_train.py"
SETTINGS = (
    # 8 steps an epoch: from the ninth on, prompts come back and budgets follow their histories.
    *("--training.prompts_per_step", "128", "--training.rollouts_per_prompt", "3"),
    *("--allocation.min_budget", "1", "--training.save_every", "1", "--evaluation.num_samples", "1"),
    *("--training.learning_rate", "5e-4", "--evaluation.every", "5"),
)
FILE_CHANGES_OF_A_STEP = 30


def moments(count: int) -> list[tuple[str, int, float]]:
    """Kind, number and seconds of each kill: at a file, amid rollouts, at any time."""
    draw = random.Random(1)
    kinds = [("file", "generation", "file", "time")[i % 4] for i in range(count)]
    return [
        (
            kind,
            draw.randint(1, 2) if kind == "generation" else draw.randint(1, FILE_CHANGES_OF_A_STEP),
            draw.uniform(0.0, 0.5) if kind == "generation" else draw.uniform(0.0, 12.0),
        )
        for kind in kinds
    ]


def run_and_die(folder: Path, moment: tuple[str, int, float], arguments: tuple[str, ...]) -> str:
    """Train until the kill; what it left behind, in words."""
    begun = RunFolder(folder).config_file.exists()
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, moment)]
    command += ["--resume"] if begun else arguments
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == -signal.SIGKILL, f"{moment} came too late:\n{done.stderr[-4000:]}"
    if not RunFolder(folder).config_file.exists():
        return "before the run began"
    unfinished = [c for c in (folder / "checkpoints").glob("checkpoint-*") if not (c / "COMPLETE").exists()]
    return "amid a checkpoint" if unfinished else f"between checkpoints ({moment[0]})"


def state_of(folder: RunFolder) -> dict[str, Any]:
    checkpoint = folder.last_checkpoint()
    assert checkpoint is not None
    return {path.name: path.read_bytes() for path in checkpoint.glob("coba_*")}


def logged(folder: RunFolder, name: str) -> list[int]:
    """Steps with a record of a metric."""
    return [record["step"] for record in read_jsonl(folder.metrics_file) if name in record]


def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(
    tmp_path: Path, soak: bool, survived: Any
) -> None:
    kills, steps = (30, 40) if soak else (4, 12)
    arguments = ("--steps", str(steps), "--seed", "1", *SETTINGS)
    expected = summary(train(tmp_path / "whole", *arguments))
    left = Counter(run_and_die(tmp_path / "killed", moment, arguments) for moment in moments(kills))
    steps_before = RunFolder(tmp_path / "killed").last_step()
    resumed = summary(train(tmp_path / "killed", "--resume"))

    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    assert killed.allocations_file.read_bytes() == whole.allocations_file.read_bytes()
    assert {r["budget"] for r in read_jsonl(whole.allocations_file)} > {3}  # histories mattered
    assert {path.name for path in killed.path.iterdir()} == {path.name for path in whole.path.iterdir()}
    weights, again = (load_file(folder.policy / "model.safetensors") for folder in (whole, killed))
    assert all((weights[name] == again[name]).all() for name in weights)
    assert state_of(killed) == state_of(whole)
    assert killed.heldout_file.read_bytes() == whole.heldout_file.read_bytes()
    measured = [record.step for record in read_records(killed.heldout_file, EvaluationRecord)]
    assert measured == [0, *range(5, steps, 5), steps]
    assert logged(killed, "loss") == list(range(1, steps + 1))
    assert logged(killed, "heldout/accuracy") == measured
    assert {**resumed, "seconds": 0} == {**expected, "seconds": 0}
    found = ", ".join(f"{count} {what}" for what, count in sorted(left.items()))
    survived(f"{kills} kills by step {steps_before} of {steps}: {found}; allocations and weights equal")


def test_a_run_killed_after_its_last_step_only_finishes(tmp_path: Path) -> None:
    """While the trained policy is written: nothing is trained again."""
    folder = RunFolder(tmp_path / "run")
    assert train_here(folder.path, "--steps", "2", *SMALL) == 0
    expected = folder.read_summary()
    policy = load_file(folder.policy / "model.safetensors")
    folder.summary_file.unlink()
    (folder.policy / "model.safetensors").write_bytes(b"half")
    records = folder.allocations_file.read_bytes()
    assert train_here(folder.path, "--resume") == 0
    assert replace(folder.read_summary(), seconds=0) == replace(expected, seconds=0)
    assert folder.allocations_file.read_bytes() == records
    again = load_file(folder.policy / "model.safetensors")
    assert all((policy[name] == again[name]).all() for name in policy)
