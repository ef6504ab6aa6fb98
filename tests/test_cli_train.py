"""`coba-rl train` end to end: every strategy by one flag, the run folder, own data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coba_rl.files import read_jsonl
from coba_rl.hosts.state import read_state
from coba_rl.runs.folder import RunFolder
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

pytestmark = [pytest.mark.trl, pytest.mark.timeout(600)]

SMALL = [
    "--training.prompts_per_step",
    "8",
    "--training.rollouts_per_prompt",
    "4",
    "--evaluation.num_samples",
    "1",
]
DATA = Path(__file__).parent / "data" / "math"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "coba_rl.cli", *map(str, arguments)]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)


def train(folder: Path, *arguments: str) -> dict:
    done = run("train", "--output-dir", folder, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def generated(folder: RunFolder) -> int:
    """TRL's own count of all tokens, without those of the prompts, which have one for each character."""
    lengths = {problem.prompt_id: len(problem.prompt) for problem in PrefixScan().train_problems()}
    prompts = sum(r["budget"] * lengths[r["prompt_id"]] for r in read_jsonl(folder.allocations_file))
    logged = [int(r["num_tokens"]) for r in read_jsonl(folder.metrics_file) if "num_tokens" in r]
    return max(logged) - prompts


def test_the_run_folder_tells_the_whole_run(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", "--steps", "3", *SMALL)
    folder = RunFolder(tmp_path / "run")
    records = list(read_jsonl(folder.allocations_file))
    assert len(records) == 3 * 8
    assert set(records[0]) == {"step", "prompt_id", "pass_rate", "value", "budget", "successes", "attempts"}
    for step in (1, 2, 3):
        assert sum(r["budget"] for r in records if r["step"] == step) == 8 * 4
    assert summary["rollouts"] == 3 * 8 * 4
    assert summary["tokens"] == generated(folder)
    assert sum(row["share_of_rollouts"] for row in summary["where_rollouts_went"]) == pytest.approx(1)
    metrics = list(read_jsonl(folder.metrics_file))
    assert {"coba/alpha", "coba/dead_groups", "loss", "grad_norm"} <= set(metrics[-1])
    assert summary == json.loads(folder.summary_file.read_text())
    assert folder.read_summary() is not None
    assert "<svg" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    again = run("train", folder.config_file, "--dry-run", "--json")
    assert json.loads(again.stdout)["training"]["prompts_per_step"] == 8


@pytest.mark.parametrize(
    ("strategy", "alpha"),
    [("uniform", None), ("knapsack", None), ("coba-paper", 10.0), ("linear-decay", 10.0)],
)
def test_the_strategy_is_one_flag(tmp_path: Path, strategy: str, alpha: float | None) -> None:
    """What was trained says so: the allocator in the checkpoint, and the preference of its first step."""
    given = ["--strategy", strategy, "--steps", "2", "--training.save_every", "2", *SMALL]
    assert train(tmp_path / "run", *given)["strategy"] == strategy
    folder = RunFolder(tmp_path / "run")
    checkpoint = folder.last_checkpoint()
    assert checkpoint is not None
    state = read_state(checkpoint)
    assert state is not None
    assert state["allocator"]["strategy"] == strategy
    assert state["allocator"]["step"] == 2
    first = next(record for record in read_jsonl(folder.metrics_file) if "loss" in record)
    assert first.get("coba/alpha") == alpha


def test_own_data_in_the_layout_of_dapo_math(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = [json.loads(line) for line in (DATA / "dapo.jsonl").read_text().splitlines()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "dapo.parquet")
    summary = train(
        tmp_path / "run",
        *("--model", str(policy_path("hard")), "--dataset", str(tmp_path / "dapo.parquet")),
        *("--task.heldout", f"math500={DATA / 'math500.jsonl'}"),
        *("--steps", "1", "--training.prompts_per_step", "2", "--training.rollouts_per_prompt", "2"),
        *("--training.max_completion_length", "4", "--evaluation.num_samples", "2"),
    )
    assert summary["rollouts"] == 4
    assert summary["heldout"]["num_problems"] > 0


def test_two_updates_on_each_batch_of_rollouts(tmp_path: Path) -> None:
    arguments = ["--training.updates_per_step", "2", "--training.micro_batch_size", "8"]
    summary = train(tmp_path / "run", "--steps", "3", *SMALL, *arguments)
    assert summary["rollouts"] == 3 * 8 * 4
    assert summary["tokens"] == generated(RunFolder(tmp_path / "run"))
    assert sorted({r["step"] for r in read_jsonl(tmp_path / "run" / "allocations.jsonl")}) == [1, 2, 3]
