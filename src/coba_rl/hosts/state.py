"""The allocator's memory in a trainer's checkpoint folder: a small JSON file and a binary one beside it.

`coba_state.json` has everything but the arrays of the state, and the size and checksum of `coba_prompts.bin`, in
which these lie one after the other. The binary file is written first: a folder in which the two do not belong
together is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from coba_rl.errors import StateError
from coba_rl.files import atomic_file, write_atomic

STATE_FILE = "coba_state.json"
PROMPTS_FILE = "coba_prompts.bin"
STATE_VERSION = 1

_ARRAY = "coba_array"  # {"coba_array": [dtype, length]} stands where an array was


def write_state(folder: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the state whole or not at all.

    Args:
        folder: The checkpoint folder; made if it is missing.
        state: JSON-able but for one-dimensional NumPy arrays of 8-byte numbers.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(folder, {"allocator": {"rates": np.array([0.5, 0.25])}})
        ...     read_state(folder)
        {'version': 1, 'allocator': {'rates': array([0.5 , 0.25])}}
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: list[np.ndarray] = []

    def take_out(value: Any) -> dict[str, Any]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} cannot be saved in a state")
        arrays.append(np.ascontiguousarray(value))
        return {_ARRAY: [value.dtype.str, len(value)]}

    text = json.dumps(state, allow_nan=False, default=take_out)
    head: dict[str, Any] = {"version": STATE_VERSION}
    if arrays:
        head[PROMPTS_FILE] = {"bytes": sum(array.nbytes for array in arrays), "crc32": _checksum(arrays)}
        with atomic_file(folder / PROMPTS_FILE) as file:
            for array in arrays:
                file.write(array.data)
    write_atomic(folder / STATE_FILE, f"{json.dumps(head)[:-1]}, {text[1:]}")


def read_state(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What `write_state` wrote; None where there is no file.

    Raises:
        StateError: A file is damaged, missing or of another version; the message names it.
    """
    path = Path(folder) / STATE_FILE
    if not path.exists():
        return None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
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
    expected = state.pop(PROMPTS_FILE, None)
    return state if expected is None else _with_arrays(state, expected, path.with_name(PROMPTS_FILE))


def _with_arrays(state: dict[str, Any], expected: dict[str, Any], path: Path) -> dict[str, Any]:
    if not path.exists():
        raise StateError(
            f"{path} is missing: {STATE_FILE} beside it needs it. Copy both, or resume from another checkpoint."
        )
    arrays: list[np.ndarray] = []
    try:
        with path.open("rb") as file:
            state = _put_back(state, file, arrays)
            whole = not file.read(1) and expected == {
                "bytes": sum(array.nbytes for array in arrays),
                "crc32": _checksum(arrays),
            }
    except (TypeError, ValueError, MemoryError, OverflowError) as error:
        raise StateError(
            f"{path} is not as {STATE_FILE} beside it says ({error}). Resume from another checkpoint."
        ) from error
    if not whole:
        raise StateError(
            f"{path} is damaged, or not of the same save as {STATE_FILE} beside it. Resume from another checkpoint."
        )
    return state


def _put_back(value: Any, file: BinaryIO, arrays: list[np.ndarray]) -> Any:
    """The value with every array read from the file, in the order in which `take_out` met them."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        kind, length = value[_ARRAY]
        if np.dtype(kind).kind not in "fiu":
            raise ValueError(f"an array of {kind!r}")
        arrays.append(np.fromfile(file, dtype=kind, count=length))
        if len(arrays[-1]) != length:
            raise ValueError(f"{len(arrays[-1])} of {length} numbers")
        return arrays[-1]
    return {key: _put_back(part, file, arrays) for key, part in value.items()}


def _checksum(arrays: list[np.ndarray]) -> int:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.data, checksum)
    return checksum
