"""The allocator's memory in a trainer's checkpoint folder: a small JSON file and a binary one beside it.

`coba_state.json` has everything but the arrays of the state, which lie one after the other in the binary file,
and the size and checksum of these. The checksum is in the name of the binary file: a save writes it beside that
of an older one, then replaces the JSON, then deletes the older one. Whenever it is killed, one pair is whole.
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
PROMPTS_FILES = "coba_prompts-*.bin"
STATE_VERSION = 1

_ARRAYS = "arrays"
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
        head[_ARRAYS] = _measure(arrays)
        with atomic_file(folder / _file_name(head[_ARRAYS])) as file:
            for array in arrays:
                file.write(array.data)
    write_atomic(folder / STATE_FILE, f"{json.dumps(head)[:-1]}, {text[1:]}")
    for file in folder.glob(PROMPTS_FILES):
        if not arrays or file.name != _file_name(head[_ARRAYS]):
            file.unlink()


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
    expected = state.pop(_ARRAYS, None)
    return state if expected is None else _with_arrays(state, expected, path)


def _with_arrays(state: dict[str, Any], expected: Any, path: Path) -> dict[str, Any]:
    arrays: list[np.ndarray] = []
    try:
        arrays_path = path.with_name(_file_name(expected))
        with arrays_path.open("rb") as file:
            state = _put_back(state, file, arrays)
            whole = not file.read(1) and expected == _measure(arrays)
    except FileNotFoundError:
        raise StateError(
            f"{arrays_path} is missing: {STATE_FILE} beside it needs it. Copy both, or resume from another checkpoint."
        ) from None
    except (KeyError, TypeError, ValueError, MemoryError, OverflowError) as error:
        raise StateError(
            f"{path} and the {PROMPTS_FILES} beside it do not belong together ({error}). Resume from another "
            "checkpoint."
        ) from error
    if not whole:
        raise StateError(f"{arrays_path} is damaged. Resume from another checkpoint.")
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


def _measure(arrays: list[np.ndarray]) -> dict[str, int]:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.data, checksum)
    return {"bytes": sum(array.nbytes for array in arrays), "crc32": checksum}


def _file_name(measured: Any) -> str:
    return PROMPTS_FILES.replace("*", f"{measured['crc32']:08x}")
