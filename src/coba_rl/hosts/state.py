"""`coba_state.json`: the allocator's memory in a trainer's checkpoint folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from coba_rl.errors import StateError
from coba_rl.files import write_atomic

STATE_FILE = "coba_state.json"
STATE_VERSION = 1


def write_state(folder: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the state whole or not at all.

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
    write_atomic(folder / STATE_FILE, json.dumps({"version": STATE_VERSION, **state}, allow_nan=False))


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
