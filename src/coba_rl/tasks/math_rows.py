"""Rows of a data set: a local Parquet, JSONL or JSON file, or a name on the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coba_rl.errors import DatasetError

EXTENSIONS = (".parquet", ".jsonl", ".json")
"""Local files that can be read."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_BATCH_ROWS = 8192


def is_hub_name(source: str | Path) -> bool:
    """Whether a source is looked up on the hub: `owner/name`, and no file of that name.

    Example:
        >>> is_hub_name("math-ai/aime25"), is_hub_name("data/train.parquet"), is_hub_name("train")
        (True, False, False)
    """
    path = Path(source).expanduser()
    return (
        not path.exists() and path.suffix.lower() not in EXTENSIONS and bool(_HUB_ID.fullmatch(str(source)))
    )


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
    return _file_rows(Path(source).expanduser(), wanted, required)


def _file_rows(path: Path, wanted: set[str], required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix not in EXTENSIONS:
        raise DatasetError(
            f"cannot tell how to read {str(path)!r}: expected a file ending in {', '.join(EXTENSIONS)}, or a hub name "
            "of the form owner/name; convert or rename the file."
        )
    if not path.is_file():
        raise DatasetError(f"no file {str(path)!r}: expected a Parquet, JSONL or JSON file; check the path.")
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path, wanted, required)
        else:
            yield from _jsonl_rows(path) if suffix == ".jsonl" else _json_rows(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"cannot read {str(path)!r} ({_first_line(error)}): expected a complete, readable {suffix[1:]} file; "
            "check its permissions, or download it again."
        ) from error


def _parquet_rows(path: Path, wanted: set[str], required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'coba-rl[math]'") from error
    try:
        file = pq.ParquetFile(path)
        columns = _columns(file.schema_arrow.names, wanted, required, str(path))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise DatasetError(
            f"{str(path)!r} is no readable Parquet file ({_first_line(error)}): download or write it again."
        ) from error


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_object(line, f"line {number} of {str(path)!r}")


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig") or "[]")
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{str(path)!r} is no JSON ({_first_line(error)}): expected a list of objects."
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DatasetError(
            f"{str(path)!r} holds {type(rows).__name__}: expected a list of objects, one a problem."
        )
    yield from rows


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{where} is no JSON ({_first_line(error)}): expected one object a line."
        ) from error
    if not isinstance(row, dict):
        raise DatasetError(f"{where} holds {type(row).__name__}: expected one object a line.")
    return row


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
            f"cannot load {source!r} (split {split!r}, config {config!r}) from the hub: {_first_line(error)}. "
            "Check the name and the connection, or download the file and give its path."
        ) from error
    columns = _columns(data.column_names, wanted, required, source)
    data = data.select_columns(columns).with_format("arrow")
    for table in data.iter(batch_size=_BATCH_ROWS):
        yield from table.to_pylist()


def _columns(available: list[str], wanted: set[str], required: tuple[str, ...], source: str) -> list[str]:
    """The columns to load; rows without a prompt column are refused before reading any."""
    if not set(required) & set(available):
        raise DatasetError(
            f"{source!r} has no prompts: expected one of the columns {list(required)}, found {available}; "
            "rename a column."
        )
    return [column for column in available if column in wanted]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
