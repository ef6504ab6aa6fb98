"""Per-prompt numbers, one row a prompt, found by the prompt's id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from coba_rl.errors import StateError

PromptId = str | int


class Column(NamedTuple):
    """A column of a `PromptTable`: its value in a new row, and the range of values it can hold."""

    default: float
    low: float = -np.inf
    high: float = np.inf


_EMPTY = -1
_LEAST_SLOTS = 64
_CHUNK = 1 << 18  # rows entered into the index at a time: bounds its working memory


def check_prompt_ids(prompt_ids: Iterable[Any]) -> list[PromptId]:
    """Plain `str` and `int` ids, from any iterable of them (NumPy integers included).

    Raises:
        TypeError: An id is neither text nor an integer.
    """
    if isinstance(prompt_ids, (str, bytes)):
        raise TypeError(f"prompt_ids={prompt_ids!r} is one text: expected a list with one id a row.")
    checked: list[PromptId] = []
    for prompt_id in prompt_ids:
        if isinstance(prompt_id, (str, int)) and not isinstance(prompt_id, bool):
            checked.append(prompt_id)
        elif isinstance(prompt_id, np.integer):
            checked.append(int(prompt_id))
        else:
            raise TypeError(
                f"prompt id {prompt_id!r} is a {type(prompt_id).__name__}: expected str or int. "
                "Use coba_rl.tasks.content_id(prompt) to make one from a prompt."
            )
    return checked


def prompt_keys(prompt_ids: Sequence[PromptId]) -> np.ndarray:
    """(P,) uint64 hash of each id, the same in every process; 1 and "1" differ.

    Example:
        >>> prompt_keys(["a", 1]).tolist()
        [1410542633125930404, 778860755400141486]
    """
    digests = (
        blake2b(
            b"s" + i.encode("utf-8", "surrogatepass") if isinstance(i, str) else b"i%x" % i, digest_size=8
        ).digest()
        for i in prompt_ids
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


class PromptTable:
    """Named float64 columns that grow a row whenever a new prompt is seen.

    Of an id only its 64-bit hash is kept. Two ids with one hash would share a row, so that the rollouts of either
    would count for both; nothing else would happen. The chance that there is such a pair among n prompts is
    n²/2⁶⁵: 3 in a million for 10 million prompts.

    Finding and adding rows costs as much as the batch. A prompt takes 8 bytes and 8 a column, a sixteenth more in
    reserve, and 5 to 11 for the index (open addressing, triangular probing): at most 45 bytes with three columns
    and 62 with five.

    Args:
        columns: What each column holds, by name.

    Example:
        >>> table = PromptTable({"successes": Column(0.0, low=0.0)})
        >>> rows = table.rows(["a", "b", "a"], create=True)
        >>> table["successes"][rows[0]] = 3.0
        >>> table["successes"][table.rows(["b", "a"])].tolist()
        [0.0, 3.0]
    """

    def __init__(self, columns: dict[str, Column]) -> None:
        self._kinds = dict(columns)
        self._num_rows = 0
        self._key_of = np.zeros(0, dtype=np.uint64)
        self._columns = {name: np.zeros(0) for name in columns}
        self._slots = np.full(_LEAST_SLOTS, _EMPTY, dtype=np.int32)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, column: str) -> np.ndarray:
        """(N,) view of a column, writable."""
        return self._columns[column][: self._num_rows]

    @property
    def nbytes(self) -> int:
        """Memory of everything that grows with the prompts."""
        return sum(array.nbytes for array in (self._key_of, self._slots, *self._columns.values()))

    def rows(self, prompt_ids: Sequence[PromptId], create: bool = False) -> np.ndarray:
        """(P,) int64 row of each prompt; −1 for one never seen, unless `create` adds it."""
        key_P = prompt_keys(prompt_ids)
        row_P = self._find(key_P)
        new_P = row_P < 0
        if create and new_P.any():
            _, first = np.unique(key_P[new_P], return_index=True)
            self._append(key_P[new_P][np.sort(first)])
            row_P = self._find(key_P)
        return row_P

    def excerpt(self, prompt_ids: Sequence[PromptId]) -> PromptTable:
        """A table like this one that holds copies of the rows of some prompts; those never seen are passed over."""
        row = np.unique(self.rows(prompt_ids))
        row = row[row >= 0]
        table = PromptTable(self._kinds)
        table._append(self._key_of[row])
        for name, values in table._columns.items():
            values[: len(row)] = self._columns[name][row]
        return table

    def _find(self, key_P: np.ndarray) -> np.ndarray:
        row_P = np.full(len(key_P), _EMPTY, dtype=np.int64)
        if not self._num_rows:
            return row_P
        last_slot = len(self._slots) - 1
        pending = np.arange(len(key_P))
        slot = (key_P & np.uint64(last_slot)).astype(np.int64)
        probe = 0
        while len(pending):
            found = self._slots[slot]
            same = (found >= 0) & (self._key_of[found] == key_P[pending])
            row_P[pending[same]] = found[same]
            elsewhere = (found >= 0) & ~same
            probe += 1
            pending, slot = pending[elsewhere], (slot[elsewhere] + probe) & last_slot
        return row_P

    def _append(self, keys: np.ndarray) -> None:
        first, self._num_rows = self._num_rows, self._num_rows + len(keys)
        self._key_of = self._grown(self._key_of)
        self._key_of[first : self._num_rows] = keys
        for name, values in self._columns.items():
            self._columns[name] = self._grown(values)
            self._columns[name][first : self._num_rows] = self._kinds[name].default
        self._index(first)

    def _grown(self, values: np.ndarray) -> np.ndarray:
        if len(values) >= self._num_rows:
            return values
        fresh = np.zeros(max(self._num_rows, len(values) + len(values) // 16), dtype=values.dtype)
        fresh[: len(values)] = values
        return fresh

    def _index(self, first: int) -> bool:
        """Enter the rows from `first` on; False if two rows have one key."""
        if 4 * self._num_rows > 3 * len(self._slots):
            num_slots = 1 << ((4 * self._num_rows - 1) // 3).bit_length()
            self._slots = np.full(num_slots, _EMPTY, dtype=np.int32)
            first = 0
        return all(
            self._enter(np.arange(start, min(start + _CHUNK, self._num_rows), dtype=np.int32))
            for start in range(first, self._num_rows, _CHUNK)
        )

    def _enter(self, row: np.ndarray) -> bool:
        last_slot = len(self._slots) - 1
        slot = (self._key_of[row] & np.uint64(last_slot)).astype(np.int64)
        probe = 0
        while len(row):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = row[free]  # where several want one slot, one of them gets it
            holder = self._slots[slot]
            lost = holder != row
            row, holder = row[lost], holder[lost]
            if (self._key_of[holder] == self._key_of[row]).any():
                return False
            probe += 1
            slot = (slot[lost] + probe) & last_slot
        return True

    def arrays(self) -> dict[str, Any]:
        """The state as NumPy arrays: views, valid until the table changes."""
        return {
            "keys": self._key_of[: self._num_rows],
            "columns": {name: self[name] for name in self._columns},
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state: the hash of every id, and every column."""
        arrays = self.arrays()
        return {
            "keys": arrays["keys"].tolist(),
            "columns": {name: values.tolist() for name, values in arrays["columns"].items()},
        }

    def restored(self, state: dict[str, Any]) -> PromptTable:
        """A table like this one that holds what `state_dict` or `arrays` returned; arrays become its own.

        Raises:
            StateError: Columns are missing, foreign, of another length than the hashes, or hold impossible values.
        """
        columns = state["columns"]
        if set(columns) != set(self._columns):
            raise StateError(
                f"The saved pass rates have the columns {sorted(columns)}, this estimator needs "
                f"{sorted(self._columns)}. Resume with the estimator and options of the saved run."
            )
        table = PromptTable(self._kinds)
        table._key_of = keys = _as_keys(state["keys"])
        table._num_rows = len(keys)
        table._columns = {name: np.asarray(columns[name], dtype=float) for name in self._columns}
        if any(column.shape != keys.shape for column in table._columns.values()) or not table._index(0):
            raise StateError("The saved pass rates are damaged: prompts and columns do not match.")
        for name, kind in self._kinds.items():
            _check_column(name, table[name], kind)
        return table


def _check_column(name: str, values: np.ndarray, kind: Column) -> None:
    impossible = ~(np.isfinite(values) & (values >= kind.low) & (values <= kind.high))
    if impossible.any():
        raise StateError(
            f"The saved pass rates are damaged: {name} is {float(values[impossible][0])!r} for a prompt, expected a "
            f"number in [{kind.low:g}, {kind.high:g}]. Use another checkpoint."
        )


def _as_keys(keys: Any) -> np.ndarray:
    if isinstance(keys, np.ndarray) and keys.dtype == np.uint64 and keys.ndim == 1:
        return keys
    if not all(type(key) is int and 0 <= key < 1 << 64 for key in keys):
        raise StateError("The saved pass rates are damaged: a prompt is no 64-bit hash.")
    return np.array(keys, dtype=np.uint64)
