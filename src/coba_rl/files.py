"""Files that are either whole or not there."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_file(path: Path) -> Generator[BinaryIO]:
    """A file to write so that a crash leaves the old content or the new, never half of it.

    Raises:
        OSError: The folder cannot be written, or the disk is full; the old file is intact.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file's whole content as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON text, with null for every number that JSON does not have (NaN, infinities).

    Example:
        >>> to_json({"accuracy": float("nan")})
        '{"accuracy": null}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON, with nulls as in `to_json`."""
    write_atomic(path, to_json(value, indent=2) + "\n")


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> None:
    """`write_atomic` of one JSON object a line, with nulls as in `to_json`."""
    write_atomic(path, _lines(records))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """`write_atomic` of a table whose columns are the keys of the first row; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, text.getvalue())


def append_jsonl(path: Path, records: list[dict[str, Any]]) -> None:
    """Append one JSON object a line, with nulls as in `to_json`."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_lines(records))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSON-lines file; a last line cut off by a crash is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(to_json(record) + "\n" for record in records)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value
