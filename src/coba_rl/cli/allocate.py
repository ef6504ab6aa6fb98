"""`coba-rl allocate`: budgets for the prompts of a file."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.pass_rates import Visits
from coba_rl.cli.config import parse_overrides
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import DatasetError
from coba_rl.files import write_atomic

_FORMATS = (".csv", ".jsonl", ".parquet")
_ROWS_SHOWN = 20


@dataclass(frozen=True)
class AllocateCommand:
    """Fields are the command's parameters."""

    file: Path
    total: int
    strategy: str
    min_budget: int
    max_budget: int
    output: Path | None
    json: bool
    options: dict[str, str]

    def run(self) -> int:
        if self.output is not None:
            _check_format(self.output)
        options = parse_overrides({"": self.options})[""]
        allocator = BudgetAllocator(
            self.strategy,
            bounds=(self.min_budget, self.max_budget),
            **{name.replace("-", "_"): value for name, value in options.items()},
        )
        allocation = allocate_rows(allocator, read_rows(self.file), self.total, self.file)
        records = [
            {"prompt_id": prompt_id, "pass_rate": None if math.isnan(p) else p, "budget": budget}
            for prompt_id, p, budget in zip(
                allocation.prompt_ids,
                allocation.pass_rates.tolist(),
                allocation.budgets.tolist(),
                strict=True,
            )
        ]
        if self.output is not None:
            write_rows(self.output, records)
        if self.json:
            print_json({"budgets": records, "metrics": allocator.metrics()})
        else:
            self._print(records, allocator.metrics())
        return 0

    def _print(self, records: list[dict[str, Any]], metrics: dict[str, float]) -> None:
        if self.output is None:
            shown = [
                [
                    str(r["prompt_id"]),
                    "unknown" if r["pass_rate"] is None else f"{r['pass_rate']:.3f}",
                    str(r["budget"]),
                ]
                for r in records[:_ROWS_SHOWN]
            ]
            more = f", first {_ROWS_SHOWN} of {len(records)}" if len(records) > _ROWS_SHOWN else ""
            print_table(f"Budgets ({self.strategy}{more})", ["prompt_id", "pass rate", "budget"], shown)
        print_table(
            "Metrics", ["metric", "value"], [[name, f"{value:.4g}"] for name, value in metrics.items()]
        )


def allocate_rows(
    allocator: BudgetAllocator, rows: list[dict[str, Any]], total: int, source: Path
) -> Allocation:
    """Allocate `total` rollouts to rows with `prompt_id` and what is known of the prompt.

    Raises:
        DatasetError: A row lacks what is needed, or holds an impossible value.
    """
    if not rows:
        raise DatasetError(f"{str(source)!r} has no rows: expected one a prompt.")
    columns = set(rows[0])
    if "prompt_id" not in columns:
        raise DatasetError(f"{str(source)!r} has the columns {_listed(columns)}: expected a prompt_id.")
    ids = [_prompt_id(row, f"{str(source)!r}, row {i}") for i, row in enumerate(rows, start=1)]
    if {"successes", "attempts"} <= columns:
        successes, attempts = _numbers(rows, "successes", source), _numbers(rows, "attempts", source)
        if ((successes < 0) | (successes > attempts)).any():
            raise DatasetError(f"{str(source)!r}: expected 0 ≤ successes ≤ attempts in every row.")
        if len(set(ids)) != len(ids):
            raise DatasetError(f"{str(source)!r} repeats prompt ids: expected one row a prompt.")
        tried = attempts > 0
        if tried.any():
            known = [prompt_id for prompt_id, was_tried in zip(ids, tried, strict=True) if was_tried]
            allocator.strategy.observe(Visits(known, successes[tried], attempts[tried]))
        return allocator.allocate(ids, total)
    if "pass_rate" in columns:
        p = _numbers(rows, "pass_rate", source, missing_allowed=True)
        if ((p < 0) | (p > 1)).any():
            raise DatasetError(f"{str(source)!r}: expected every pass_rate in [0, 1].")
        if not np.isnan(p).all():
            allocator.strategy.capability.update(1.0 - float(np.nanmean(p)))
        return allocator.allocate(ids, total, pass_rates=p)
    raise DatasetError(
        f"{str(source)!r} has the columns {_listed(columns)}: expected pass_rate, or successes and attempts."
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV, JSONL or parquet file.

    Raises:
        DatasetError: Missing file, unknown ending, or content that is not of the format.
    """
    _check_format(path)
    if not path.exists():
        raise DatasetError(f"{str(path)!r} does not exist.")
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            return list(csv.DictReader(io.StringIO(text), strict=True))
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ImportError as error:
        raise DatasetError(f"{str(path)!r}: reading parquet needs pyarrow ({error}).") from None
    except (ValueError, OSError, RecursionError, csv.Error) as error:
        raise DatasetError(f"{str(path)!r} is not a readable {path.suffix[1:]} file: {error}.") from None
    if not all(isinstance(row, dict) for row in rows):
        raise DatasetError(f"{str(path)!r}: expected a JSON object in every line.")
    return rows


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV, JSONL or parquet, by the file's ending."""
    if path.suffix == ".jsonl":
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomic(path, text.getvalue())
    else:
        import pyarrow
        import pyarrow.parquet

        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
        write_atomic(path, buffer.getvalue())


def _check_format(path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise DatasetError(f"{str(path)!r}: expected a file that ends in {', '.join(_FORMATS)}.")


def _listed(columns: set[Any]) -> list[str]:
    return sorted(map(str, columns))


def _prompt_id(row: dict[str, Any], where: str) -> str | int:
    value = row.get("prompt_id")
    if value is None or value == "":
        raise DatasetError(f"{where} has no prompt_id: expected text or a whole number.")
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _numbers(
    rows: list[dict[str, Any]], column: str, source: Path, missing_allowed: bool = False
) -> np.ndarray:
    numbers = []
    for i, row in enumerate(rows, start=1):
        value = row.get(column)
        if value in (None, "") and missing_allowed:
            numbers.append(math.nan)
            continue
        try:
            number = float(value) if isinstance(value, (int, float, str)) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DatasetError(f"{str(source)!r}, row {i}: {column} is {value!r}, expected a number.")
        numbers.append(number)
    return np.array(numbers)
