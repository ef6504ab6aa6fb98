"""Per-prompt numbers, one row a prompt, found by the prompt's id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coba_rl.errors import StateError

PromptId = str | int


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


class PromptTable:
    """Named float64 columns that grow a row whenever a new prompt is seen.

    Args:
        columns: Column name → value of a new row.

    Example:
        >>> table = PromptTable({"successes": 0.0})
        >>> rows = table.rows(["a", "b", "a"], create=True)
        >>> table["successes"][rows[0]] = 3.0
        >>> table["successes"][table.rows(["b", "a"])].tolist()
        [0.0, 3.0]
    """

    def __init__(self, columns: dict[str, float]) -> None:
        self._defaults = dict(columns)
        self._row_of: dict[PromptId, int] = {}
        self._columns = {name: np.empty(0) for name in columns}

    def __len__(self) -> int:
        return len(self._row_of)

    def __getitem__(self, column: str) -> np.ndarray:
        """(N,) view of a column, writable."""
        return self._columns[column][: len(self)]

    def rows(self, prompt_ids: Sequence[PromptId], create: bool = False) -> np.ndarray:
        """(P,) int64 row of each prompt; −1 for one never seen, unless `create` adds it."""
        if create:
            for prompt_id in prompt_ids:
                self._row_of.setdefault(prompt_id, len(self._row_of))
            self._grow()
        return np.fromiter(
            (self._row_of.get(i, -1) for i in prompt_ids), dtype=np.int64, count=len(prompt_ids)
        )

    def _grow(self) -> None:
        for name, values in self._columns.items():
            if len(values) < len(self):
                fresh = np.full(max(2 * len(values), len(self), 64), self._defaults[name])
                fresh[: len(values)] = values
                self._columns[name] = fresh

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state: the ids and every column."""
        return {"ids": list(self._row_of), "columns": {name: self[name].tolist() for name in self._columns}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            StateError: Columns are missing, foreign, or of another length than the ids.
        """
        ids, columns = state["ids"], state["columns"]
        if set(columns) != set(self._columns):
            raise StateError(
                f"The saved pass rates have the columns {sorted(columns)}, this estimator needs "
                f"{sorted(self._columns)}. Resume with the estimator and options of the saved run."
            )
        row_of = {prompt_id: row for row, prompt_id in enumerate(check_prompt_ids(ids))}
        loaded = {name: np.array(columns[name], dtype=float) for name in self._columns}
        sound = all(values.shape == (len(ids),) and np.isfinite(values).all() for values in loaded.values())
        if not sound or len(row_of) != len(ids):
            raise StateError("The saved pass rates are damaged: ids and columns do not match.")
        self._row_of, self._columns = row_of, loaded
