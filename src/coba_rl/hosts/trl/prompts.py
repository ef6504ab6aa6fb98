"""Which prompt a row of the training data is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from coba_rl.allocation.prompt_table import check_prompt_ids
from coba_rl.errors import ConfigError
from coba_rl.tasks.base import content_id

IMAGE_COLUMNS = ("image", "images")


def prompt_id(row: Mapping[str, Any], id_column: str, *, whole_row: bool = False) -> str | int:
    """Identify a row's prompt, so that its history is found again in the next epoch and the next run.

    Args:
        row: One row of the training data.
        id_column: The column that holds the id; used where the row has it.
        whole_row: Without an id, identify the row by all its columns instead of by its prompt. For environments,
            whose `reset` makes the prompt from the other columns.

    Returns:
        The value of the id column, else `content_id` of the prompt (and of its images, if any).

    Raises:
        ConfigError: The id is missing in this row, or is neither text nor a whole number.

    Example:
        >>> prompt_id({"prompt": "1+1=", "prompt_id": "sum-7"}, "prompt_id")
        'sum-7'
        >>> prompt_id({"prompt": "1+1="}, "prompt_id") == content_id("1+1=")
        True
    """
    if id_column in row:
        return _check_id(row[id_column], id_column)
    if whole_row or "prompt" not in row:
        return content_id(row)
    if any(row.get(column) is not None for column in IMAGE_COLUMNS):
        return content_id({column: row.get(column) for column in ("prompt", *IMAGE_COLUMNS)})
    return content_id(row["prompt"])


def dataset_ids(data: Any, id_column: str, *, whole_row: bool = False) -> list[str | int] | None:
    """The prompt id of every row of a data set; None where they cannot be read from one column of text.

    Example:
        >>> dataset_ids(Dataset.from_dict({"prompt": ["a", "b", "a"], "prompt_id": [7, 8, 7]}), "prompt_id")
        [7, 8, 7]
    """
    if not isinstance(data, Dataset):
        return None
    column = id_column
    if id_column not in data.column_names:
        if whole_row or "prompt" not in data.column_names or {*IMAGE_COLUMNS} & {*data.column_names}:
            return None
        column = "prompt"
    return [prompt_id({column: value}, id_column) for value in data[column]]


def _check_id(given: Any, id_column: str) -> str | int:
    try:
        return check_prompt_ids([given])[0]
    except TypeError:
        raise ConfigError(
            f"Column {id_column!r} holds {given!r}: expected a prompt id (text or a whole number) in every row. Fill "
            "the column in, or drop it to identify prompts by their content."
        ) from None
