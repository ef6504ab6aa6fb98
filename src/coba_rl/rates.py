"""From a file of what is known of prompts to a file of their budgets.

Example:
    >>> import tempfile
    >>> from coba_rl.allocation import BudgetAllocator
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, budgets = Path(folder) / "rates.csv", Path(folder) / "budgets.csv"
    ...     _ = file.write_text("prompt_id,pass_rate\\neasy,0.9\\nmid,0.5\\nhard,0.1\\n")
    ...     write_budgets(budgets, allocate_rates(BudgetAllocator("knapsack"), read_rates(file), total=24))
    ...     print(budgets.read_text(), end="")
    prompt_id,pass_rate,budget
    easy,0.9,2
    mid,0.5,7
    hard,0.1,15
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.prompt_table import PromptId, check_prompt_ids
from coba_rl.allocation.success import graded
from coba_rl.errors import DatasetError
from coba_rl.files import write_atomic, write_csv, write_jsonl
from coba_rl.rows import file_rows

OUTPUT_FORMATS = (".csv", ".jsonl", ".parquet")
COLUMNS = ("prompt_id", "pass_rate", "successes", "attempts")

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?")
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, eq=False)
class Rates:
    """What a file says of its prompts."""

    prompt_ids: list[PromptId]
    """(P,) in the order of the file."""
    pass_rate_P: np.ndarray | None
    """In [0, 1], NaN where unknown; None where the file has counts."""
    visits: Visits | None
    """Successes and attempts of the prompts that were tried."""


def read_rates(path: Path) -> Rates:
    """Read a CSV, JSONL, JSON or Parquet file with one row a prompt.

    Raises:
        DatasetError: The file is missing or unreadable; a row lacks what is needed, or holds an impossible value.
    """
    rows, source = list(file_rows(path, COLUMNS, ("prompt_id",))), repr(str(path))
    if not rows:
        raise DatasetError(f"{source} has no rows: expected one a prompt.")
    columns = set().union(*rows)
    ids = [_prompt_id(row.get("prompt_id"), f"{source}, row {i}") for i, row in enumerate(rows, start=1)]
    if {"successes", "attempts"} <= columns:
        return Rates(ids, None, _visits(rows, ids, source))
    if "pass_rate" in columns:
        pass_rate_P = _numbers(rows, "pass_rate", source, missing_allowed=True)
        try:
            return Rates(ids, graded(pass_rate_P), None)
        except ValueError as error:
            raise DatasetError(f"{source}: {error}; expected every pass_rate in [0, 1].") from None
    raise DatasetError(
        f"{source} has the columns {sorted(map(str, columns))}: expected pass_rate, or successes and attempts."
    )


def _visits(rows: list[dict[str, Any]], ids: list[PromptId], source: str) -> Visits | None:
    successes_P, attempts_P = _numbers(rows, "successes", source), _numbers(rows, "attempts", source)
    if ((attempts_P < 0) | (attempts_P != np.floor(attempts_P))).any():
        raise DatasetError(f"{source}: expected whole attempts ≥ 0 in every row.")
    impossible = (attempts_P == 0) & (successes_P != 0)
    try:
        graded(np.where(impossible, np.inf, successes_P / np.maximum(attempts_P, 1.0)))
    except ValueError:
        raise DatasetError(f"{source}: expected 0 ≤ successes ≤ attempts in every row.") from None
    if len(set(ids)) != len(ids):
        raise DatasetError(f"{source} repeats prompt ids: expected one row a prompt.")
    tried = attempts_P > 0
    if not tried.any():
        return None
    known = [prompt_id for prompt_id, was_tried in zip(ids, tried, strict=True) if was_tried]
    return Visits(known, np.clip(successes_P, 0.0, attempts_P)[tried], attempts_P[tried])


def _prompt_id(value: Any, where: str) -> PromptId:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)  # whole numbers of data bases
    try:
        if value != "":
            return check_prompt_ids([value])[0]
    except TypeError:
        pass
    raise DatasetError(f"{where} has the prompt_id {value!r}: expected text or a whole number.")


def _numbers(
    rows: list[dict[str, Any]], column: str, source: str, missing_allowed: bool = False
) -> np.ndarray:
    numbers = [_number(row.get(column)) for row in rows]
    for i, (row, number) in enumerate(zip(rows, numbers, strict=True), start=1):
        if number is None or (math.isnan(number) and not missing_allowed):
            raise DatasetError(
                f"{source}, row {i}: {column} is {row.get(column)!r}, expected a number (decimals with a point)."
            )
    return np.array(numbers)


def _number(value: Any) -> float | None:
    """A number, also from text; NaN where there is none, None for anything else."""
    if isinstance(value, str):
        value = value.strip().lower()
        if value in ("", "nan"):
            return math.nan
        if not _NUMBER.fullmatch(value):  # `float` takes 0_1 and digits of every script
            return None
    elif value is None:
        return math.nan
    elif isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isinf(number) else number


def check_output(path: Path) -> None:
    """Refuse a file that budgets could not be written to.

    Raises:
        DatasetError: Another format, no such folder, or a missing package.
    """
    suffix = path.suffix.lower()
    if suffix not in OUTPUT_FORMATS:
        raise DatasetError(f"{str(path)!r}: expected a file that ends in {', '.join(OUTPUT_FORMATS)}.")
    if not path.parent.is_dir():
        raise DatasetError(f"no folder {str(path.parent)!r} to write {path.name!r} to: make it first.")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise DatasetError(f"{str(path)!r}: Parquet files need pyarrow: pip install pyarrow.")


def allocate_rates(allocator: BudgetAllocator, rates: Rates, total: int) -> Allocation:
    """Allocate `total` rollouts to prompts of which a file tells something.

    Counts are observed, as if they were the last step's rollouts; pass rates are used as they are, and their mean
    is the policy's capability.

    Raises:
        InfeasibleBudgetError: `total` does not fit the number of prompts and the allocator's bounds.
    """
    allocator.begin(1)
    if rates.visits is not None:
        allocator.strategy.observe(rates.visits)
    p = rates.pass_rate_P
    if p is not None and not np.isnan(p).all():
        allocator.strategy.observe_success_rate(float(np.nanmean(p)))
    return allocator.allocate(rates.prompt_ids, total, pass_rates=p)


def budget_rows(allocation: Allocation) -> list[dict[str, Any]]:
    """`prompt_id`, `pass_rate` (None where unknown) and `budget` of each prompt, JSON-able."""
    columns = (allocation.prompt_ids, allocation.pass_rates.tolist(), allocation.budgets.tolist())
    return [
        {"prompt_id": prompt_id, "pass_rate": None if math.isnan(p) else p, "budget": budget}
        for prompt_id, p, budget in zip(*columns, strict=True)
    ]


def write_budgets(path: Path, allocation: Allocation) -> None:
    """Write `budget_rows` as CSV, JSONL or Parquet, by the file's ending, whole or not at all.

    JSONL keeps the type of every id. In CSV ids are text; in Parquet they are whole numbers where all of them are
    that fit 64 bits, else text.

    Raises:
        DatasetError: See `check_output`; or two ids that would be one in the file, as 1 and "1".
    """
    check_output(path)
    suffix, rows = path.suffix.lower(), budget_rows(allocation)
    if suffix == ".jsonl":
        write_jsonl(path, rows)
    elif suffix == ".csv":
        write_csv(path, _with_text_ids(rows, path.name))
    elif all(isinstance(i, int) and i in _INT64 for i in allocation.prompt_ids):
        write_atomic(path, _parquet(rows))
    else:
        write_atomic(path, _parquet(_with_text_ids(rows, path.name)))


def _with_text_ids(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    texts: dict[str, PromptId] = {}
    for prompt_id in (row["prompt_id"] for row in rows):
        if texts.setdefault(str(prompt_id), prompt_id) != prompt_id:
            raise DatasetError(
                f"The prompts {texts[str(prompt_id)]!r} and {prompt_id!r} would be one in {name!r}: write a .jsonl "
                "file, which tells numbers from text."
            )
    return [{**row, "prompt_id": str(row["prompt_id"])} for row in rows]


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    ids = pyarrow.infer_type([row["prompt_id"] for row in rows])
    schema = {"prompt_id": ids, "pass_rate": pyarrow.float64(), "budget": pyarrow.int64()}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(schema)), buffer)
    return buffer.getvalue()
