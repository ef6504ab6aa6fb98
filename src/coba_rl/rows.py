"""Rows of the files that users bring: CSV, JSONL, JSON or Parquet, one dictionary a row."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from coba_rl.errors import DatasetError

FORMATS = (".csv", ".jsonl", ".json", ".parquet")
"""Endings of the files that can be read, in any case."""

BATCH_ROWS = 8192
"""Rows of a table that are turned into dictionaries at a time."""


def file_rows(path: Path, wanted: Collection[str], required: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    A column is found whatever its case, spaces, dashes and underscores: `Prompt ID` is `prompt_id`.

    Args:
        path: The file. Its ending says what it is.
        wanted: Columns to load, where there are any; of a Parquet file the others never leave the disk.
        required: At least one of these columns must be there (checked before any row is read, except in JSON).

    Raises:
        DatasetError: The file is missing, unreadable, lacks the required columns or has a column twice; or
            pyarrow is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise DatasetError(
            f"cannot tell how to read {str(path)!r}: expected a file ending in {', '.join(FORMATS)}; convert or rename it."
        )
    if not path.is_file():
        raise DatasetError(f"no file {str(path)!r}: expected a {suffix[1:]} file; check the path.")
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path, wanted, required)
        elif suffix == ".csv":
            yield from _csv_rows(path, wanted, required)
        else:
            yield from _jsonl_rows(path, wanted) if suffix == ".jsonl" else _json_rows(path, wanted)
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"cannot read {str(path)!r} ({first_line(error)}): expected a complete, readable {suffix[1:]} file, text as "
            "UTF-8; check its permissions, save it as UTF-8, or download it again."
        ) from error


def named_columns(
    found: Iterable[str], wanted: Collection[str], required: Collection[str], source: str
) -> dict[str, str]:
    """The columns that are wanted: as the file spells them → as they are asked for.

    Raises:
        DatasetError: None of the required ones is there, or two spell the same one.

    Example:
        >>> named_columns(["Prompt ID", "score"], {"prompt_id", "pass_rate"}, ["prompt_id"], "rates.csv")
        {'Prompt ID': 'prompt_id'}
    """
    found = list(found)
    spelled = _by_key(frozenset(wanted))
    by_name: dict[str, str] = {}
    for column in found:
        name = spelled.get(_key(column))
        if name in by_name:
            raise DatasetError(
                f"{source} has {name!r} twice, as {by_name[name]!r} and {column!r}: remove or rename one of them."
            )
        if name is not None:
            by_name[name] = column
    if required and not by_name.keys() & {*required}:
        raise DatasetError(
            f"{source} has none of the columns it needs: expected one of the columns {list(required)}, found {found}; "
            "rename a column."
        )
    return {column: name for name, column in by_name.items()}


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@cache
def _by_key(wanted: frozenset[str]) -> dict[str, str]:
    return {_key(name): name for name in wanted}


@cache
def _key(column: str) -> str:
    return re.sub(r"[\s_-]+", "", column).lower()


def _csv_rows(path: Path, wanted: Collection[str], required: Collection[str]) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            names = named_columns(header, wanted, required, repr(str(path))) if header else {}
            for cells in reader:
                if cells and len(cells) != len(header):
                    raise DatasetError(
                        f"line {reader.line_num} of {str(path)!r} has {len(cells)} cells, the header {len(header)}: "
                        "expected as many. Write decimals with a point, and text that holds commas in quotes."
                    )
                if cells:
                    yield {names.get(c, c): cell for c, cell in zip(header, cells, strict=True)}
        except csv.Error as error:
            raise DatasetError(
                f"line {reader.line_num} of {str(path)!r} is no CSV ({error}): mend it or write the file again."
            ) from None


def _parquet_rows(path: Path, wanted: Collection[str], required: Collection[str]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DatasetError(
            f"{str(path)!r}: Parquet files need pyarrow ({error}): pip install pyarrow."
        ) from None
    try:
        file = pq.ParquetFile(path)
        names = named_columns(file.schema_arrow.names, wanted, required, repr(str(path)))
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(names)):
            yield from ({names[c]: value for c, value in row.items()} for row in batch.to_pylist())
    except pa.ArrowException as error:
        raise DatasetError(
            f"{str(path)!r} is no readable Parquet file ({first_line(error)}): download or write it again."
        ) from error


def _jsonl_rows(path: Path, wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix("\ufeff")  # a byte order mark, also where files were joined
            where = f"line {number} of {str(path)!r}"
            if line.strip():
                yield _row(_parsed(line, where, "one object a line"), line, wanted, where)


def _json_rows(path: Path, wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    rows = _parsed(text or "[]", repr(str(path)), "a list of objects")
    if not isinstance(rows, list):
        raise DatasetError(f"{str(path)!r} holds {type(rows).__name__}: expected a list of objects.")
    for number, row in enumerate(rows, start=1):
        yield _row(row, text, wanted, f"row {number} of {str(path)!r}")


def _parsed(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is no JSON ({first_line(error)}): expected {expected}.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands there twice")
    return row


def _row(row: Any, text: str, wanted: Collection[str], where: str) -> dict[str, Any]:
    """The row with its columns named as they are asked for; `text` is what it was parsed from."""
    if not isinstance(row, dict):
        raise DatasetError(f"{where} holds {type(row).__name__}: expected an object.")
    names = named_columns(row, wanted, (), where)
    row = {names.get(column, column): value for column, value in row.items()}
    if re.search(r"\\u[dD][89a-fA-F]", text):
        _check_characters({name: row[name] for name in names.values()}, where)
    return row


def _check_characters(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise DatasetError(
            f"{where} holds half a character ({half!r}, a lone surrogate), which no tokenizer and no file takes: "
            "remove it."
        ) from None
