"""`allocations.jsonl` beside the checkpoints: what every prompt of every step was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coba_rl.errors import StateError
from coba_rl.files import append_jsonl, read_jsonl, write_jsonl

ALLOCATIONS_FILE = "allocations.jsonl"


class AllocationLog:
    """`allocations.jsonl`: one line a prompt and step.

    Args:
        folder: `trainer.default_local_dir`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = AllocationLog(Path(folder))
        ...     log.append([{"step": 1, "budget": 2}, {"step": 2, "budget": 3}])
        ...     log.truncate(1)
        ...     print(log.path.read_text().strip())
        {"step": 1, "budget": 2}
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ALLOCATIONS_FILE

    def truncate(self, step: int) -> None:
        """Drop the records after a step, which the resumed run writes again.

        Raises:
            StateError: The file is damaged before its last line.
        """
        if not self.path.exists():
            return
        try:
            kept = [record for record in read_jsonl(self.path) if record["step"] <= step]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{self.path} is damaged ({error}). Move it away and resume.") from error
        write_jsonl(self.path, kept)

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add one step's records."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(self.path, records)
