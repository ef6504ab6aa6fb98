"""What the allocator leaves on disk: `coba_state.json` in a checkpoint, `allocations.jsonl` beside the checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coba_rl.errors import StateError
from coba_rl.files import append_jsonl, read_jsonl, write_atomic, write_json

STATE_FILE = "coba_state.json"
STATE_VERSION = 1
ALLOCATIONS_FILE = "allocations.jsonl"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state whole or not at all.

    Args:
        folder: `global_step_N`; made if it is missing.
        state: JSON-able.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(Path(folder), {"allocator": {}})
        ...     read_state(Path(folder))
        {'version': 1, 'allocator': {}}
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATE_FILE, {"version": STATE_VERSION, **state})


def read_state(folder: Path) -> dict[str, Any] | None:
    """What `write_state` wrote; None where there is no file.

    Raises:
        StateError: The file is damaged or of another version; the message names it.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StateError(
            f"{path} is damaged ({error}). Resume from another checkpoint, or delete the file to go on without the "
            "saved pass rates."
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("allocator"), dict) or "version" not in state:
        raise StateError(f"{path} is not an allocator state. Resume from another checkpoint.")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"{path} has version {state['version']!r}, this coba-rl reads version {STATE_VERSION}. Install the "
            "coba-rl that wrote it."
        )
    return state


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
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def append(self, records: list[dict[str, Any]]) -> None:
        """Add one step's records."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_jsonl(self.path, records)
