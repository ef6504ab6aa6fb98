"""The folder of one training run: what is in it, and how it survives being killed."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from coba_rl.allocation.saved import check_version
from coba_rl.errors import ConfigError, StateError
from coba_rl.files import append_jsonl, write_atomic, write_json, write_jsonl
from coba_rl.records import (
    ALLOCATIONS_FILE,
    CONFIG_FILE,
    HELDOUT_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    AllocationRecord,
    EvaluationRecord,
    RunSummary,
    append_records,
    read_metrics,
    read_records,
    read_summary,
    write_summary,
)

_COMPLETE = "COMPLETE"
_VERSION = 1
_CHUNK_BYTES = 1 << 20


class RunFolder:
    """`config.toml`, `metrics.jsonl`, `allocations.jsonl`, `heldout.jsonl`, `checkpoints/`, `policy/`,
    `summary.json`, `report.html`.

    Records carry the step they belong to, and a checkpoint counts only once it is marked complete. Resuming
    therefore drops every record after the last complete checkpoint and goes on from there. The mark lists the
    checkpoint's files with their checksums, so that a damaged one is found before anything is changed.

    Args:
        path: The folder; made by `create`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = RunFolder(Path(parent) / "run")
        ...     folder.create("")
        ...     folder.log_metrics({"step": 1, "loss": 0.5})
        ...     folder.last_step(), folder.read_summary()
        (0, None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / CONFIG_FILE
        self.metrics_file = path / METRICS_FILE
        self.allocations_file = path / ALLOCATIONS_FILE
        self.heldout_file = path / HELDOUT_FILE
        self.summary_file = path / SUMMARY_FILE
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"

    def check_new(self) -> None:
        """Refuse a folder that `create` could not make; nothing is left behind.

        Raises:
            ConfigError: The folder already holds a run, or cannot be made or written.
        """
        if self.config_file.exists():
            raise ConfigError(
                f"{str(self.path)!r} already holds a run. Continue it with --resume, or choose another --output-dir."
            )
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.path):
                pass
        for folder in missing:
            folder.rmdir()

    def check_old(self) -> None:
        """Refuse a folder without a run to go on with.

        Raises:
            ConfigError: There is no configuration in it.
        """
        if not self.config_file.exists():
            raise ConfigError(
                f"{str(self.path)!r} holds no run to resume: {CONFIG_FILE} is missing. Start it anew, or give its folder."
            )

    @contextmanager
    def leaving_nothing(self) -> Generator[None]:
        """Remove the folders that were made inside, if what made them fails."""
        missing = [folder for folder in (self.checkpoints, *self.checkpoints.parents) if not folder.exists()]
        try:
            yield
        except BaseException:
            if missing:
                shutil.rmtree(missing[-1], ignore_errors=True)
            raise

    def create(self, config_toml: str) -> None:
        """Make the folder and write the configuration.

        Raises:
            ConfigError: The folder already holds a run, or cannot be made.
        """
        self.check_new()
        self._write_config(config_toml)

    def reopen(self, config_toml: str) -> int:
        """Prepare to go on: drop unfinished checkpoints and the records after the last finished one.

        Returns:
            The step to go on from; 0 when no checkpoint is complete.

        Raises:
            StateError: A file of the run is damaged; nothing has been changed.
            ConfigError: The folder cannot be written.
        """
        step = self.last_step()
        # Without a checkpoint all is done again, also what precedes the first step.
        kept = {
            file: [record for record in records if record["step"] <= (step or -1)]
            for file, records in self._records().items()
        }
        with _writing(self.path):
            for checkpoint in self._checkpoints():
                if not (checkpoint / _COMPLETE).exists():
                    shutil.rmtree(checkpoint)
            for half_written in self.path.glob(".*.*.*"):  # as `write_atomic` names them
                if half_written.suffix[1:].isdecimal():
                    half_written.unlink()
            for file, records in kept.items():
                write_jsonl(file, records)
            self.summary_file.unlink(missing_ok=True)
        self._write_config(config_toml)
        return step

    def _records(self) -> dict[Path, list[dict[str, Any]]]:
        """Checked and fit for writing again."""
        kinds = {self.allocations_file: AllocationRecord, self.heldout_file: EvaluationRecord}
        typed = {file: list(map(asdict, read_records(file, kind))) for file, kind in kinds.items()}
        return {self.metrics_file: read_metrics(self.metrics_file), **typed}

    def _write_config(self, config_toml: str) -> None:
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.config_file, config_toml)

    def log_metrics(self, record: dict[str, Any]) -> None:
        """Append one step's metrics."""
        with _writing(self.metrics_file):
            append_jsonl(self.metrics_file, [record])

    def log_allocations(self, records: list[AllocationRecord]) -> None:
        """Append one step's allocations, one record a prompt."""
        with _writing(self.allocations_file):
            append_records(self.allocations_file, records)

    def log_heldout(self, record: EvaluationRecord) -> None:
        """Append one measurement of the held-out problems."""
        with _writing(self.heldout_file):
            append_records(self.heldout_file, [record])

    def write_summary(self, summary: RunSummary) -> None:
        """Write `summary.json`; its presence says that the run is finished."""
        with _writing(self.summary_file):
            write_summary(self.summary_file, summary)

    def read_summary(self) -> RunSummary | None:
        """The summary of a finished run.

        Raises:
            StateError: The file is damaged.
        """
        return read_summary(self.summary_file)

    def mark_complete(self, checkpoint: Path, step: int) -> None:
        """Declare a checkpoint whole: everything in it has been written."""
        with _writing(checkpoint):
            files = {name: _size_and_checksum(checkpoint / name) for name in _names(checkpoint)}
            mark = {"version": _VERSION, "step": step, "files": files}
            write_json(checkpoint / _COMPLETE, {**mark, "checksum": _checksum_of(mark)})

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = [path for path in self._checkpoints() if (path / _COMPLETE).exists()]
        return max(complete, key=_number, default=None)

    def _checkpoints(self) -> list[Path]:
        """Folders named by the trainer, complete or not; a copy under another name is left alone."""
        return [path for path in self.checkpoints.glob("checkpoint-*") if _number(path) >= 0]

    def last_step(self) -> int:
        """Training step of the newest complete checkpoint; 0 without one.

        Raises:
            StateError: The mark is damaged or of another version.
        """
        checkpoint = self.last_checkpoint()
        return 0 if checkpoint is None else _read_mark(checkpoint)["step"]

    def check_last_checkpoint(self) -> None:
        """Compare the files of the newest complete checkpoint with its mark.

        Raises:
            StateError: A file is missing, or is not what was written.
        """
        checkpoint = self.last_checkpoint()
        if checkpoint is None:
            return
        for name, written in _read_mark(checkpoint)["files"].items():
            file = checkpoint / name
            if not file.is_file() or _size_and_checksum(file) != written:
                what = "is damaged: it is not what was written" if file.is_file() else "is missing"
                raise StateError(f"{str(file)!r} {what}. {_advice(checkpoint)}")


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Name what could not be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be written: {error}. Give it room or rights, or choose another --output-dir. A "
            "run that has begun goes on from its last complete checkpoint with --resume."
        ) from None


def _number(checkpoint: Path) -> int:
    """Optimiser step in a checkpoint's name; −1 without one."""
    digits = checkpoint.name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() else -1


def _names(checkpoint: Path) -> list[str]:
    files = (path for path in checkpoint.rglob("*") if path.is_file() and path.name != _COMPLETE)
    return sorted(str(path.relative_to(checkpoint)) for path in files)


def _size_and_checksum(file: Path) -> list[int]:
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return [file.stat().st_size, checksum]


def _read_mark(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / _COMPLETE
    try:
        mark = json.loads(file.read_bytes())
        version = mark["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StateError(f"{str(file)!r} is damaged ({error!r}). {_advice(checkpoint)}") from None
    check_version(repr(str(file)), version, _VERSION)
    if mark.pop("checksum", None) != _checksum_of(mark):
        raise StateError(f"{str(file)!r} is damaged: it is not what was written. {_advice(checkpoint)}")
    return mark


def _checksum_of(mark: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(mark, sort_keys=True).encode())


def _advice(checkpoint: Path) -> str:
    return f"Delete {str(checkpoint)!r} and resume: the run goes on from the checkpoint before it."
