"""Which prompt a row of training data is, so that its history is found again in the next epoch and the next run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coba_rl.allocation.prompt_table import PromptId, check_prompt_ids
from coba_rl.errors import ConfigError
from coba_rl.tasks.base import content_id

PICTURES = ("image", "images")
"""Columns that belong to the prompt beside `prompt`."""


def prompt_id(row: Mapping[str, Any], id_column: str, *, whole_row: bool = False) -> PromptId:
    """Identify a row's prompt.

    Args:
        row: One row of the training data.
        id_column: The column that holds the id; used where the row has it.
        whole_row: Without an id, identify the row by all its columns instead of by its prompt. For environments,
            which make the prompt from the other columns.

    Returns:
        The value of the id column, else `content_id` of the prompt (and of its pictures, if any).

    Raises:
        ConfigError: The id is missing in this row, or is neither text nor a whole number.

    Example:
        >>> prompt_id({"prompt": "1+1=", "prompt_id": "sum-7"}, "prompt_id")
        'sum-7'
        >>> prompt_id({"prompt": "1+1="}, "prompt_id") == content_id("1+1=")
        True
    """
    if id_column in row:
        return _checked(row[id_column], id_column)
    if whole_row or "prompt" not in row:
        return content_id(row)
    if any(row.get(column) is not None for column in PICTURES):
        return content_id({column: row.get(column) for column in ("prompt", *PICTURES)})
    return content_id(row["prompt"])


def dataset_ids(data: Any, id_column: str, *, whole_row: bool = False) -> list[PromptId] | None:
    """The prompt id of every row of a data set; None where they cannot be read from one column of text.

    Args:
        data: A `datasets.Dataset`; of anything else, as a stream, the rows are not known before they come.
        id_column: As for `prompt_id`.
        whole_row: As for `prompt_id`.
    """
    columns = getattr(data, "column_names", None)
    if not columns or not hasattr(data, "__len__"):
        return None
    if id_column not in columns and (whole_row or "prompt" not in columns or {*PICTURES} & {*columns}):
        return None
    column = id_column if id_column in columns else "prompt"
    return [prompt_id({column: value}, id_column) for value in data[column]]


def _checked(given: Any, id_column: str) -> PromptId:
    try:
        return check_prompt_ids([given])[0]
    except TypeError:
        raise ConfigError(
            f"Column {id_column!r} holds {given!r}: expected a prompt id (text or a whole number) in every row. Fill "
            "the column in, or drop it to identify prompts by their content."
        ) from None
