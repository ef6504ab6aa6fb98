"""The folder of a run: what is written is what is read, damage is named by file and line, and a resume drops the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coba_rl.errors import ConfigError, StateError
from coba_rl.files import read_jsonl
from coba_rl.records import (
    AllocationRecord,
    Estimate,
    EvaluationRecord,
    HeldoutSummary,
    PassRateBin,
    RunSummary,
    read_metrics,
    read_records,
)
from coba_rl.report.records import read_run
from coba_rl.runs.config import RunConfig, load_config, to_toml
from coba_rl.runs.folder import RunFolder

MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put first."""

METRICS: dict[str, Any] = {"step": 1, "loss": 0.5, "coba/alpha": None, "note": "日"}
ALLOCATIONS = [
    AllocationRecord(1, "a", pass_rate=None, value=None, budget=2, successes=0.5, attempts=1),
    AllocationRecord(1, 7, pass_rate=1 / 3, value=1e-300, budget=30, successes=4.0, attempts=29),
]
HELDOUT = EvaluationRecord(1, "vllm colocate", {"a": 1 / 7, "b": None})
SUMMARY = RunSummary(
    strategy="own.module:Strategy",
    steps=1,
    rollouts=32,
    tokens=None,
    budget_min=2,
    budget_max=30,
    dead_groups=0.1,
    seconds=1.25,
    heldout=HeldoutSummary(
        16, 2, Estimate(0.1, 0.0, 0.2), Estimate(0.3, 0.2, 0.4), Estimate(0.2, 0.1, 1 / 3)
    ),
    where_rollouts_went=(PassRateBin("unknown", 1.0, 1.0, 16.0, None), PassRateBin("0–0.05", 0, 0, 2, 0.5)),
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run with one checkpoint, that of its only step."""
    folder = RunFolder(tmp_path / "run")
    folder.create(to_toml(RunConfig()))
    folder.log_metrics(METRICS)
    folder.log_allocations(ALLOCATIONS)
    folder.log_heldout(HELDOUT)
    checkpoint = folder.checkpoints / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"\0\1")
    folder.mark_complete(checkpoint, 1)
    folder.write_summary(SUMMARY)
    return folder


def check_contents(folder: RunFolder) -> None:
    assert load_config(folder.config_file, {}) == RunConfig()
    assert read_metrics(folder.metrics_file) == [METRICS]
    assert read_records(folder.allocations_file, AllocationRecord) == ALLOCATIONS
    assert read_records(folder.heldout_file, EvaluationRecord) == [HELDOUT]
    assert folder.last_step() == 1
    folder.check_last_checkpoint()


def test_every_file_of_a_run_reads_as_it_was_written(folder: RunFolder) -> None:
    check_contents(folder)
    assert folder.read_summary() == SUMMARY


def test_reopening_a_whole_run_changes_no_record(folder: RunFolder) -> None:
    files = (folder.metrics_file, folder.allocations_file, folder.heldout_file)
    before = [file.read_bytes() for file in files]
    assert folder.reopen(to_toml(RunConfig())) == 1
    check_contents(folder)
    assert [file.read_bytes() for file in files] == before
    assert folder.read_summary() is None


def test_byte_order_marks_in_a_run_folder_change_nothing(folder: RunFolder) -> None:
    before = read_run(folder.path)
    for file in folder.path.iterdir():
        if file.is_file():
            file.write_bytes(MARK + file.read_bytes())
    check_contents(folder)
    after = read_run(folder.path)
    assert after.summary == before.summary == SUMMARY
    assert after.metrics == before.metrics
    assert after.config == before.config != {}
    assert after.heldout == before.heldout == [HELDOUT]
    assert len(after.allocations) == 2


def test_a_number_that_json_lacks_is_null_in_files_and_is_none_or_nan_again(folder: RunFolder) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    unknown = Estimate(0.5, math.nan, math.nan)
    folder.log_metrics({"step": 2, "loss": math.inf})
    folder.log_heldout(EvaluationRecord(2, "vllm", {"a": math.nan}))
    folder.write_summary(replace(SUMMARY, heldout=replace(SUMMARY.heldout, gain=unknown)))
    for file in (folder.metrics_file, folder.heldout_file):
        for line in file.read_text().splitlines():
            json.loads(line, parse_constant=refuse)
    json.loads(folder.summary_file.read_text(), parse_constant=refuse)
    assert read_metrics(folder.metrics_file)[1] == {"step": 2, "loss": None}
    assert read_records(folder.heldout_file, EvaluationRecord)[1].accuracy == {"a": None}
    summary = folder.read_summary()
    assert summary is not None
    assert summary.heldout.gain is not None
    assert math.isnan(summary.heldout.gain.low)


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "metrics.jsonl": lambda folder: read_metrics(folder.metrics_file),
    "allocations.jsonl": lambda folder: read_records(folder.allocations_file, AllocationRecord),
    "heldout.jsonl": lambda folder: read_records(folder.heldout_file, EvaluationRecord),
}
DAMAGES = {
    "no JSON": "{broken",
    "a list": "[1]",
    "nothing in it": "{}",
    "step of a wrong type": '{"step": "x"}',
    "step without a value": '{"step": null}',
    "nested": "[" * 3000,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_named_by_file_and_number(folder: RunFolder, name: str, damage: str) -> None:
    file = folder.path / name
    good = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*good, DAMAGES[damage], *good]) + "\n", encoding="utf-8")
    wanted = rf"{name}' is damaged in line {len(good) + 1}: .+\. Delete the broken line"
    for read in (READERS[name], lambda folder: read_run(folder.path), lambda folder: folder.reopen("")):
        with pytest.raises(StateError, match=wanted):
            read(folder)
    assert load_config(folder.config_file, {}) == RunConfig(), "a refused resume changed the run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 2.5}, "budget is 2.5"),
        ({"successes": None}, "successes is None"),
        ({"surplus": 1}, "surplus is 1"),
    ],
)
def test_a_record_with_a_wrong_value_is_damaged(
    folder: RunFolder, change: dict[str, Any], message: str
) -> None:
    first, *rest = read_jsonl(folder.allocations_file)
    folder.allocations_file.write_text("".join(json.dumps(r) + "\n" for r in (*rest, {**first, **change})))
    with pytest.raises(StateError, match=rf"allocations.jsonl' is damaged in line 2: {message}"):
        folder.reopen("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 9}', "version 9"),
    ],
)
def test_a_damaged_summary_is_named(folder: RunFolder, content: str, message: str) -> None:
    folder.summary_file.write_text(content)
    with pytest.raises(StateError, match=rf"summary.json' .*{message}|summary.json' has {message}"):
        folder.read_summary()


def test_a_folder_with_a_run_is_not_overwritten(folder: RunFolder) -> None:
    with pytest.raises(ConfigError, match="already holds a run"):
        folder.create(to_toml(RunConfig()))


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no run to resume: config\.toml is missing"):
        RunFolder(tmp_path).check_old()


def test_reopening_drops_what_came_after_the_last_whole_checkpoint(folder: RunFolder) -> None:
    folder.log_allocations([replace(record, step=step) for step in (2, 3) for record in ALLOCATIONS])
    folder.log_metrics({"step": 2})
    folder.log_heldout(replace(HELDOUT, step=2))
    (folder.checkpoints / "checkpoint-2").mkdir()
    with folder.allocations_file.open("a") as file:
        file.write('{"step": 4, "prom')  # cut off by the crash
    assert folder.reopen(to_toml(RunConfig())) == 1
    check_contents(folder)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["checkpoint-1"]


def test_without_a_checkpoint_nothing_is_kept(folder: RunFolder) -> None:
    (folder.checkpoints / "checkpoint-1" / "COMPLETE").unlink()
    folder.log_heldout(replace(HELDOUT, step=0))
    assert folder.reopen("") == 0
    for file in (folder.metrics_file, folder.allocations_file, folder.heldout_file):
        assert list(read_jsonl(file)) == []
