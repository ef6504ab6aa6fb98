"""The allocator's memory in a trainer's checkpoint folder: one NumPy archive, `coba_state.npz`.

It holds the state as JSON (the bytes of the array `state`), in which `{"array": "a3"}` stands where an array was, and the
arrays under these names. `np.load` opens it. The archive carries a checksum of each of its parts.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from coba_rl.allocation.saved import check_version
from coba_rl.errors import StateError
from coba_rl.files import atomic_file

STATE_FILE = "coba_state.npz"
STATE_VERSION = 2

_TEXT = "state"
_ARRAY = "array"
_DAMAGE = (
    AttributeError, EOFError, KeyError, MemoryError, NotImplementedError, OSError, OverflowError, RecursionError, RuntimeError,
    SyntaxError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What readers of an archive raise when its bytes are others than were written."""


def write_state(folder: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write the state whole or not at all; the same state gives the same bytes.

    Args:
        folder: The checkpoint folder; made if it is missing.
        state: JSON-able but for one-dimensional NumPy arrays of numbers.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_state(folder, {"allocator": {"rates": np.array([0.5, 0.25])}})
        ...     read_state(folder)
        {'version': 2, 'allocator': {'rates': array([0.5 , 0.25])}}
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}

    def take_out(value: Any) -> dict[str, str]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} cannot be saved in a state")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}

    text = json.dumps({"version": STATE_VERSION, **state}, allow_nan=False, default=take_out)
    parts = {_TEXT: np.frombuffer(text.encode(), np.uint8), **arrays}
    with atomic_file(folder / STATE_FILE) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in parts.items():
            # Without the time of day that `np.savez` would put in.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


def read_state(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What `write_state` wrote; None where there is no file.

    Raises:
        StateError: The file is damaged or of another version; the message names it.
    """
    path = Path(folder) / STATE_FILE
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, NpzFile(file, allow_pickle=False) as archive:
            state = _put_back(json.loads(archive[_TEXT].tobytes()), archive)
    except _DAMAGE as error:
        raise StateError(
            f"{path} is damaged ({type(error).__name__}: {error}). Resume from another checkpoint, or delete the file to "
            "go on without the saved pass rates."
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("allocator"), dict) or "version" not in state:
        raise StateError(f"{path} is not an allocator state. Resume from another checkpoint.")
    check_version(str(path), state["version"], STATE_VERSION)
    return state


def _put_back(value: Any, archive: NpzFile) -> Any:
    """The value with every array in its place."""
    if not isinstance(value, dict):
        return value
    if value.keys() != {_ARRAY}:
        return {key: _put_back(part, archive) for key, part in value.items()}
    array = archive[value[_ARRAY]]
    if not (isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "fiu"):
        raise ValueError(f"{value[_ARRAY]!r} is no list of numbers")
    return array
