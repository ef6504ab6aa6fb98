"""Full disks, read-only folders and damaged files: one clear message, and the last good state intact."""

from __future__ import annotations

import ctypes
import json
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import SMALL, contents, message, train, train_here

from coba_rl.errors import CobaError, ConfigError, StateError
from coba_rl.hosts.state import STATE_FILE, read_state, write_state
from coba_rl.records import AllocationRecord, EvaluationRecord
from coba_rl.report import write_run_report
from coba_rl.runs.folder import RunFolder

pytestmark = [pytest.mark.trl, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with the checkpoints of the last two."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert train_here(folder, "--steps", "3", *SMALL) == 0
    return folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> RunFolder:
    """A copy that a test may spoil, as if the run had been killed before its summary."""
    shutil.copytree(finished, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.summary_file.unlink()
    return folder


def resume(folder: RunFolder) -> int:
    return train_here(folder.path, "--resume")


def last_checkpoint(folder: RunFolder) -> Path:
    checkpoint = folder.last_checkpoint()
    assert checkpoint is not None
    return checkpoint


def state_files(folder: RunFolder) -> list[Path]:
    return sorted(last_checkpoint(folder).glob("coba_*"))


# Damaged checkpoints


def cut(raw: bytes, _: random.Random) -> bytes:
    return raw[: len(raw) // 2]


def flip_a_bit(raw: bytes, draw: random.Random) -> bytes:
    position = draw.randrange(8 * len(raw))
    changed = bytearray(raw)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def test_every_damaged_file_of_a_checkpoint_is_named(run_folder: RunFolder) -> None:
    draw = random.Random(0)
    files = [path for path in last_checkpoint(run_folder).iterdir() if path.name != "COMPLETE"]
    assert {"model.safetensors", "optimizer.pt", STATE_FILE} <= {path.name for path in files}
    run_folder.check_last_checkpoint()
    for file in files:
        whole = file.read_bytes()
        for damage in (cut, flip_a_bit, flip_a_bit, flip_a_bit):
            file.write_bytes(damage(whole, draw))
            with pytest.raises(StateError, match=f"{file.name}' is damaged.*Delete"):
                run_folder.check_last_checkpoint()
        file.unlink()
        with pytest.raises(StateError, match=f"{file.name}' is missing.*Delete"):
            run_folder.check_last_checkpoint()
        file.write_bytes(whole)
    run_folder.check_last_checkpoint()


def test_no_flipped_bit_of_the_state_or_the_mark_goes_unnoticed(run_folder: RunFolder) -> None:
    draw = random.Random(0)
    for file in (*state_files(run_folder), last_checkpoint(run_folder) / "COMPLETE"):
        whole = file.read_bytes()
        for _ in range(300):
            damaged = flip_a_bit(whole, draw)
            file.write_bytes(damaged)
            if file.name == "COMPLETE" and json_or_none(damaged) == json.loads(whole):
                continue  # one blank for another
            with pytest.raises(StateError, match=file.name):
                run_folder.check_last_checkpoint()
        file.write_bytes(whole)


def json_or_none(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def test_a_damaged_checkpoint_is_refused_and_the_one_before_goes_on(
    run_folder: RunFolder, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_files(run_folder)[0]
    state.write_bytes(flip_a_bit(state.read_bytes(), random.Random(3)))
    before = contents(run_folder.path)
    assert resume(run_folder) == 2
    assert f"{state.name}' is damaged" in capsys.readouterr().err
    assert contents(run_folder.path) == before
    shutil.rmtree(last_checkpoint(run_folder))  # what the message advises
    assert resume(run_folder) == 0
    assert run_folder.allocations_file.read_bytes() == (finished / "allocations.jsonl").read_bytes()


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "allocations.jsonl", "heldout.jsonl", "summary.json", "config.toml"]
)
@pytest.mark.parametrize("damage", [b'{"step": 1, \xff\n', b"[1\n", b"[]\n"], ids=["bytes", "open", "list"])
def test_a_damaged_record_is_named_and_nothing_is_changed(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str], name: str, damage: bytes
) -> None:
    file = run_folder.path / name
    file.write_bytes(damage + file.read_bytes() if name.endswith(".jsonl") else damage)
    before = contents(run_folder.path / "checkpoints")
    assert resume(run_folder) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("coba-rl: ")
    assert name in line
    assert contents(run_folder.path / "checkpoints") == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.jsonl", '{"step": null}'),
        ("metrics.jsonl", '{"step": 1, "coba/alpha": "x"}'),
        ("allocations.jsonl", "[1]"),
        ("heldout.jsonl", '{"step": 1}'),
    ],
)
def test_a_damaged_record_is_named_by_the_report(run_folder: RunFolder, name: str, damage: str) -> None:
    (run_folder.path / name).write_text(damage + "\n")
    with pytest.raises(CobaError, match=name):
        write_run_report(run_folder.path)


def test_a_state_of_brackets_is_damaged(run_folder: RunFolder) -> None:
    brackets = np.frombuffer(b"[" * 100_000, np.uint8)
    np.savez(last_checkpoint(run_folder) / STATE_FILE, state=brackets)
    with pytest.raises(StateError, match=STATE_FILE):
        read_state(last_checkpoint(run_folder))


# States of another version


def with_version(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "version": 99}


def with_allocator_version(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "allocator": with_version(state["allocator"])}


@pytest.mark.parametrize("change", [with_version, with_allocator_version])
def test_a_state_of_a_future_version_is_refused_untouched(
    run_folder: RunFolder,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    checkpoint = last_checkpoint(run_folder)
    state = read_state(checkpoint)
    assert state is not None
    write_state(checkpoint, change(state))
    run_folder.mark_complete(checkpoint, 3)
    before = contents(run_folder.path)
    assert resume(run_folder) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert STATE_FILE in line
    assert "version 99" in line
    assert "Install the coba-rl that wrote it" in line
    assert contents(run_folder.path) == before


def test_a_mark_of_a_future_version_is_refused_untouched(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = last_checkpoint(run_folder) / "COMPLETE"
    mark.write_text(json.dumps(with_version(json.loads(mark.read_text()))))
    before = contents(run_folder.path)
    assert resume(run_folder) == 2
    assert "version 99" in capsys.readouterr().err
    assert contents(run_folder.path) == before


# Disks


@pytest.mark.parametrize("kilobytes", [500, 2000], ids=["amid the weights", "amid the optimizer"])
def test_a_checkpoint_that_finds_no_room_ends_the_run_and_costs_only_itself(
    run_folder: RunFolder, finished: Path, kilobytes: int
) -> None:
    shutil.rmtree(last_checkpoint(run_folder))
    good = last_checkpoint(run_folder)
    before = contents(good)

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, 1024 * kilobytes))

    line = message(train(run_folder.path, "--resume", preexec_fn=limit_files))
    assert "checkpoint-3' could not be written" in line
    assert "Make room" in line
    assert last_checkpoint(run_folder) == good
    assert contents(good) == before
    assert resume(run_folder) == 0
    assert run_folder.allocations_file.read_bytes() == (finished / "allocations.jsonl").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_records_that_find_no_room_are_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create("")
    given = AllocationRecord(1, "a", pass_rate=None, value=None, budget=2, successes=0.0, attempts=2)
    for file, write in (
        (folder.metrics_file, lambda: folder.log_metrics({"step": 1})),
        (folder.allocations_file, lambda: folder.log_allocations([given])),
        (folder.heldout_file, lambda: folder.log_heldout(EvaluationRecord(1, "transformers", {}))),
    ):
        file.symlink_to("/dev/full")
        with pytest.raises(ConfigError, match=f"{file.name}' cannot be written.*No space left.*--resume"):
            write()


def obey_permissions() -> None:
    """Let a root user be refused like any other."""
    drop_from_bounding_set, override_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions, 0, 0, 0)


def test_a_read_only_folder_is_named_and_a_run_in_it_stays(run_folder: RunFolder) -> None:
    before = contents(run_folder.path)
    folders = [run_folder.path, *(path for path in run_folder.path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    arguments = [
        ["train", "--output-dir", str(run_folder.path), "--resume"],
        ["train", "--output-dir", str(run_folder.path / "new"), "--steps", "1"],
    ]
    script = f"from coba_rl.cli import main\nprint([main(given) for given in {arguments}])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            preexec_fn=obey_permissions, capture_output=True, text=True, timeout=3000, check=True,
        )  # fmt: skip
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.stdout.strip() == "[2, 2]"
    assert f"coba-rl: '{run_folder.path}' cannot be written" in done.stderr
    assert f"coba-rl: '{run_folder.path / 'new'}' cannot be written" in done.stderr
    assert contents(run_folder.path) == before


def test_a_copy_of_a_checkpoint_is_left_alone(run_folder: RunFolder) -> None:
    copies = [run_folder.checkpoints / name for name in ("checkpoint-best", "checkpoint-3.old")]
    for copy in copies:
        shutil.copytree(last_checkpoint(run_folder), copy)
    (copies[0] / "COMPLETE").unlink()
    assert run_folder.reopen("") == 3
    assert all(copy.is_dir() for copy in copies)
