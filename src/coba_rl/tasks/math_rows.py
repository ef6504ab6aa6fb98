"""Rows of a data set: a local file, or a name on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coba_rl.errors import DatasetError
from coba_rl.rows import BATCH_ROWS, FORMATS, file_rows, first_line, named_columns

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(source: str | Path) -> bool:
    """Whether a source is looked up on the hub: `owner/name`, and no file of that name.

    Example:
        >>> is_hub_name("math-ai/aime25"), is_hub_name("data/train.parquet"), is_hub_name("train")
        (True, False, False)
    """
    path = Path(source).expanduser()
    return not path.exists() and path.suffix.lower() not in FORMATS and bool(_HUB_ID.fullmatch(str(source)))


def read_rows(
    source: str | Path,
    wanted: set[str],
    required: tuple[str, ...],
    *,
    split: str = "train",
    config: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set, one dictionary a row.

    Args:
        source: A local file, or `owner/name` on the hub.
        wanted: Columns to load, where there are any; the others (images, say) never leave the disk.
        required: At least one of these columns must be there (checked before any row is read, except in JSON).
        split: Split on the hub; a local file is one split.
        config: Configuration on the hub, None for the only one.

    Raises:
        DatasetError: The data set is missing, unreadable or lacks the required columns.
        ImportError: The packages of the `math` extra are not installed.
    """
    if is_hub_name(source):
        return _hub_rows(str(source), wanted, required, split, config)
    return file_rows(Path(source).expanduser(), wanted, required)


def _hub_rows(
    source: str, wanted: set[str], required: tuple[str, ...], split: str, config: str | None
) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{source!r} is read with datasets: pip install 'coba-rl[math]'") from error
    try:
        data = datasets.load_dataset(source, config, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated types
        raise DatasetError(
            f"cannot load {source!r} (split {split!r}, config {config!r}) from the hub: {first_line(error)}. "
            "Check the name and the connection, or download the file and give its path."
        ) from error
    names = named_columns(data.column_names, wanted, required, repr(source))
    data = data.select_columns(list(names)).with_format("arrow")
    for table in data.iter(batch_size=BATCH_ROWS):
        yield from ({names[column]: value for column, value in row.items()} for row in table.to_pylist())
