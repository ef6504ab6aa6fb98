"""The folder of one training run: what is in it, and how it survives being killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from coba_rl.errors import ConfigError, StateError
from coba_rl.files import append_jsonl, read_jsonl, write_atomic, write_json

_COMPLETE = "COMPLETE"


class RunFolder:
    """`config.toml`, `metrics.jsonl`, `allocations.jsonl`, `evaluation.json`, `checkpoints/`, `policy/`,
    `summary.json`, `report.html`.

    Records carry the step they belong to, and a checkpoint counts only once it is marked complete. Resuming
    therefore drops every record after the last complete checkpoint and goes on from there.

    Args:
        path: The folder; made by `create`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.allocations_file = path / "allocations.jsonl"
        self.evaluation_file = path / "evaluation.json"
        self.summary_file = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"

    def create(self, config_toml: str) -> None:
        """Make the folder and write the configuration.

        Raises:
            ConfigError: The folder already holds a run, or cannot be made.
        """
        if self.config_file.exists():
            raise ConfigError(
                f"{str(self.path)!r} already holds a run. Continue it with --resume, or choose another --output-dir."
            )
        self._write_config(config_toml)

    def reopen(self, config_toml: str) -> int:
        """Prepare to go on: drop unfinished checkpoints and the records after the last finished one.

        Returns:
            The step to go on from; 0 when no checkpoint is complete.
        """
        step = self.last_step()
        for checkpoint in self.checkpoints.glob("checkpoint-*"):
            if not (checkpoint / _COMPLETE).exists():
                shutil.rmtree(checkpoint)
        for file in (self.metrics_file, self.allocations_file):
            kept = [record for record in read_jsonl(file) if record["step"] <= step]
            write_atomic(file, "".join(json.dumps(record) + "\n" for record in kept))
        self.summary_file.unlink(missing_ok=True)
        self._write_config(config_toml)
        return step

    def _write_config(self, config_toml: str) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomic(self.config_file, config_toml)
        except OSError as error:
            raise ConfigError(f"The run folder {str(self.path)!r} cannot be written: {error}.") from None

    def log_metrics(self, record: dict[str, Any]) -> None:
        """Append one step's metrics."""
        append_jsonl(self.metrics_file, [record])

    def log_allocations(self, records: list[dict[str, Any]]) -> None:
        """Append one step's allocations, one record a prompt."""
        append_jsonl(self.allocations_file, records)

    def mark_complete(self, checkpoint: Path, step: int) -> None:
        """Declare a checkpoint whole: everything in it has been written."""
        write_atomic(checkpoint / _COMPLETE, f"{step}\n")

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = [path for path in self.checkpoints.glob("checkpoint-*") if (path / _COMPLETE).exists()]
        return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def last_step(self) -> int:
        """Training step of the newest complete checkpoint; 0 without one."""
        checkpoint = self.last_checkpoint()
        if checkpoint is None:
            return 0
        text = (checkpoint / _COMPLETE).read_text(encoding="utf-8").strip()
        if not text.isdecimal():
            raise StateError(
                f"{str(checkpoint)!r} is damaged: its marker reads {text!r}. Delete it and resume."
            )
        return int(text)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`; its presence says that the run is finished."""
        write_json(self.summary_file, summary)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        return (
            json.loads(self.summary_file.read_text(encoding="utf-8")) if self.summary_file.exists() else None
        )
