"""Data, group size, bounds or strategy changed between two runs: said aloud, and either legal or refused."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from runs import contents, train_here

from coba_rl.allocation import BudgetAllocator
from coba_rl.cli import main
from coba_rl.files import read_jsonl
from coba_rl.hosts.session import BudgetSession
from coba_rl.runs.folder import RunFolder
from coba_rl.tasks.math import MathTask
from coba_rl.tasks.policy import policy_path

pytestmark = [pytest.mark.trl, pytest.mark.timeout(3600)]

ROWS = [{"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(4) for b in range(3)]
SETTINGS = (
    *("--training.prompts_per_step", "6", "--training.rollouts_per_prompt", "4"),
    *(
        "--training.max_completion_length",
        "4",
        "--training.save_every",
        "1",
        "--model",
        str(policy_path("hard")),
    ),
)


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has seen each of the twelve prompts once, in a folder beside its data."""
    folder = tmp_path_factory.mktemp("trained")
    data = write(folder / "data.jsonl", ROWS)
    assert train_here(folder / "run", "--dataset", data, "--steps", "2", *SETTINGS) == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


def resume(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code, and what was said of the allocation."""
    data = ("--dataset", str(folder / "data.jsonl"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = main(["train", "--output-dir", str(folder / "run"), "--resume", *data, *arguments])
    said = [str(warning.message) for warning in caught]
    return code, [text for text in said if "checkpoint was saved" in text or "history" in text or "→" in text]


def records(folder: Path, step: int) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(folder / "run" / "allocations.jsonl") if record["step"] == step]


def histories(folder: Path) -> BudgetAllocator:
    """The allocator as it was saved, before anything was trained again."""
    session = BudgetSession(BudgetAllocator("coba"))
    checkpoint = RunFolder(folder / "run").last_checkpoint()
    assert checkpoint is not None
    session.load(checkpoint)
    return session.allocator


def edited(row: dict[str, str]) -> dict[str, str]:
    return {**row, "prompt": f"9*{row['prompt']}"}


CHANGES: dict[str, tuple[list[dict[str, str]], int]] = {
    "unchanged": (ROWS, 0),
    "re-ordered": (ROWS[::-1], 0),
    "added": ([{"prompt": "9+9=", "answer": "8"}, *ROWS, {"prompt": "8+8=", "answer": "6"}], 0),
    "removed": (ROWS[3:], 3),
    "edited": ([edited(row) if i in (0, 5) else row for i, row in enumerate(ROWS)], 2),
    "all at once": ([edited(ROWS[0]), *ROWS[:3:-1], {"prompt": "7+7=", "answer": "4"}], 4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_histories_follow_the_prompts_and_what_no_longer_matches_is_counted(
    folder: Path, change: str
) -> None:
    rows, lost = CHANGES[change]
    before = histories(folder)
    write(folder / "data.jsonl", rows)
    code, said = resume(folder, "--steps", "3")
    assert code == 0
    expected = [f"{lost} of 12 prompts with a history are not in the training data any more"] * (lost > 0)
    assert len(said) == len(expected)
    assert all(text in line for text, line in zip(expected, said, strict=True))
    now = records(folder, 3)
    assert {record["prompt_id"] for record in now} <= {
        problem.prompt_id for problem in MathTask(str(folder / "data.jsonl")).train_problems()
    }
    ids = [record["prompt_id"] for record in now]
    known = before.strategy.seen(ids)
    assert known.sum() >= len(ids) - 3
    assert [record["pass_rate"] for record in now] == before.strategy.pass_rates(ids).tolist()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--training.rollouts_per_prompt", "6"), "num_generations was 4 when the checkpoint was saved and is 6 now"),
        (("--allocation.max_budget", "8"), "bounds: [2, 128] → [2, 8]"),
        (("--allocation.kappa", "15"), "kappa: 11.0 → 15"),
        (("--training.prompts_per_step", "4"), "generation_batch_size was 24 when the checkpoint was saved"),
    ],
)  # fmt: skip
def test_a_legal_change_is_said_and_used(folder: Path, option: tuple[str, str], said: str) -> None:
    code, lines = resume(folder, "--steps", "3", *option)
    assert code == 0
    assert any(said in line for line in lines), lines
    rollouts = {"--training.rollouts_per_prompt": 36, "--training.prompts_per_step": 16}.get(option[0], 24)
    assert sum(record["budget"] for record in records(folder, 3)) == rollouts


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--strategy", "knapsack"), "saved by strategy 'coba', this run uses 'knapsack'"),
        (("--allocation.estimator", "drift"), "Resume with the estimator and options of the saved run"),
        (("--training.rollouts_per_prompt", "200"), "must lie within"),
    ],
)
def test_an_illegal_change_is_refused_and_leaves_the_run_as_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str], expected: str
) -> None:
    before = contents(folder)
    code, _ = resume(folder, "--steps", "3", *option)
    assert code == 2
    assert expected in capsys.readouterr().err
    assert contents(folder) == before
    assert resume(folder, "--steps", "3") == (0, [])  # without it, the run goes on
