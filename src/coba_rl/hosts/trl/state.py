"""`coba_state.json`: the allocator's memory in a checkpoint folder, beside `trainer_state.json`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from coba_rl.errors import StateError

STATE_FILE = "coba_state.json"
STATE_VERSION = 1


def write_state(folder: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the state whole or not at all: a crash leaves the old file or the new one, never a part.

    Args:
        folder: The checkpoint folder; made if it is missing.
        state: JSON-able.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(folder, {"allocator": {}})
        ...     read_state(folder)
        {'version': 1, 'allocator': {}}
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{STATE_FILE}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": STATE_VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it private; the rest of a checkpoint is not
        os.replace(temporary, folder / STATE_FILE)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_state(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What `write_state` wrote; None where there is no file.

    Raises:
        StateError: The file is damaged or of another version; the message names it.
    """
    path = Path(folder) / STATE_FILE
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StateError(
            f"{path} is damaged ({error}). Resume from another checkpoint, or delete the file to go on without "
            "the saved pass rates."
        ) from error
    if not isinstance(state, dict) or "version" not in state or "allocator" not in state:
        raise StateError(f"{path} is not an allocator state. Resume from another checkpoint.")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"{path} has version {state['version']!r}, this coba-rl reads version {STATE_VERSION}. Install the "
            "coba-rl that wrote it."
        )
    return state
