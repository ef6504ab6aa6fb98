"""`allocations.jsonl` and `metrics.jsonl` beside the checkpoints: what `coba-rl report` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coba_rl.files import append_jsonl, write_jsonl
from coba_rl.records import ALLOCATIONS_FILE, METRICS_FILE, AllocationRecord, append_records, read_metrics


class RunLog:
    """The records of a job, each with its step.

    Args:
        folder: `trainer.default_local_dir`; made when there is something to write.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = RunLog(Path(folder))
        ...     log.metrics(1, {"loss": 0.5, "who": "me"})
        ...     log.metrics(2, {"loss": 0.25})
        ...     log.truncate(1)
        ...     print((Path(folder) / METRICS_FILE).read_text().strip())
        {"step": 1, "loss": 0.5}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def allocations(self, records: list[AllocationRecord]) -> None:
        """Add one step's allocations."""
        self.folder.mkdir(parents=True, exist_ok=True)
        append_records(self.folder / ALLOCATIONS_FILE, records)

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add those of one step's metrics that are numbers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = {name: _number(value) for name, value in metrics.items()}
        known = {name: value for name, value in numbers.items() if value is not None}
        append_jsonl(self.folder / METRICS_FILE, [{"step": step, **known}])

    def truncate(self, step: int) -> None:
        """Drop the records after a step, which the resumed job writes again.

        Raises:
            StateError: A file is damaged before its last line.
        """
        for file in (self.folder / ALLOCATIONS_FILE, self.folder / METRICS_FILE):
            if file.exists():
                write_jsonl(file, [record for record in read_metrics(file) if record["step"] <= step])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
