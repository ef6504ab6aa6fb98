"""What a run writes and everyone reads: one line a prompt and step, one a held-out measurement, and the summary.

Every record is a frozen dataclass; a file holds one JSON object a line (the summary: one in all). Numbers that JSON does
not have (NaN) are null in the files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from coba_rl.allocation.saved import check_version
from coba_rl.errors import StateError
from coba_rl.files import append_jsonl, read_jsonl, write_json

CONFIG_FILE = "config.toml"
"""What was to be run, in TOML."""
ALLOCATIONS_FILE = "allocations.jsonl"
"""`AllocationRecord`, one line a prompt and step."""
METRICS_FILE = "metrics.jsonl"
"""One line a step: `step`, and whatever was logged of it, by name."""
HELDOUT_FILE = "heldout.jsonl"
"""`EvaluationRecord`, one line a measurement."""
SUMMARY_FILE = "summary.json"
"""`RunSummary`; it is there once the run is finished."""

SUMMARY_VERSION = 1

Record = TypeVar("Record")
_CHECKED = ConfigDict(extra="forbid")
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A number; null in a file is NaN."""


@checked_dataclass(frozen=True, slots=True, config=_CHECKED)
class AllocationRecord:
    """What a prompt of a step was given, and what came of it.

    Example:
        >>> AllocationRecord(step=3, prompt_id="a", pass_rate=0.5, value=None, budget=2, successes=1.0, attempts=2).budget
        2
    """

    step: int
    """Training step that uses the rollouts first, counted from 1."""
    prompt_id: str | int
    pass_rate: float | None
    """Believed when the budget was given, in [0, 1]; None: nothing was known."""
    value: float | None
    """What the strategy thought of the prompt at the mean budget; None: it has no value function, or nothing was known."""
    budget: int
    """Rollouts given."""
    successes: float
    """Sum of success over the judged rollouts."""
    attempts: int
    """Rollouts that came back and could be judged."""


@checked_dataclass(frozen=True, slots=True, config=_CHECKED)
class EvaluationRecord:
    """Held-out accuracy at one moment."""

    step: int
    """Training step after which it was measured; 0: before training."""
    engine: str
    """What generated the completions."""
    accuracy: dict[str, float | None]
    """Accuracy on each held-out problem, by its id; None where no completion could be judged."""


@checked_dataclass(frozen=True, slots=True, config=_CHECKED)
class Estimate:
    """A value with the ends of its 95 % interval (NaN where one prompt leaves the spread unknown)."""

    value: Number
    low: Number
    high: Number

    def as_dict(self) -> dict[str, float | None]:
        """Fit for JSON: a NaN becomes None."""
        return {name: None if math.isnan(number) else number for name, number in asdict(self).items()}


@checked_dataclass(frozen=True, slots=True, config=_CHECKED)
class HeldoutSummary:
    """Held-out accuracy before and after a run, over the problems judged both times."""

    num_samples: int
    """Completions a problem."""
    num_problems: int
    before: Estimate | None
    """None where nothing was measured."""
    after: Estimate | None
    gain: Estimate | None
    """Paired by problem."""


@checked_dataclass(frozen=True, slots=True, config=_CHECKED)
class PassRateBin:
    """What prompts of one range of believed pass rates were given."""

    pass_rate: str
    """The range, or `unknown`."""
    share_of_prompts: float
    share_of_rollouts: float
    mean_budget: float
    success: float | None
    """Share of their judged rollouts that succeeded; None where nothing was judged."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_CHECKED)
class RunSummary:
    """What a finished run came to."""

    version: int = SUMMARY_VERSION
    strategy: str
    steps: int
    rollouts: int
    tokens: int | None
    """Generated in training; None where the lengths were not logged."""
    budget_min: int
    budget_max: int
    dead_groups: float
    """Mean share of groups whose rollouts all scored alike."""
    seconds: float
    """Of training, without the held-out measurements."""
    heldout: HeldoutSummary
    where_rollouts_went: tuple[PassRateBin, ...]


def append_records(file: Path, records: Iterable[Any]) -> None:
    """Append records of one kind.

    Raises:
        OSError: The file cannot be written.
    """
    append_jsonl(file, [asdict(record) for record in records])


def read_records(file: Path, kind: type[Record]) -> list[Record]:
    """The records of a file, in its order; none where there is no file. A last line cut off by a crash is left out.

    Raises:
        StateError: A line is no such record; the message names file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / HELDOUT_FILE
        ...     append_records(file, [EvaluationRecord(0, "transformers", {"a": 0.5, "b": None})])
        ...     read_records(file, EvaluationRecord)
        [EvaluationRecord(step=0, engine='transformers', accuracy={'a': 0.5, 'b': None})]
    """
    return _read(file, _adapter(kind).validate_python)


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """What was logged, in the order of the file: `step`, and metrics by name; read as `read_records` reads.

    Raises:
        StateError: A line is no object with a step; the message names file and line.
    """
    return _read(file, _with_step)


def _with_step(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise ValueError("expected an object with a whole number as its 'step'")
    return line


def _read(file: Path, checked: Callable[[Any], Record]) -> list[Record]:
    found: list[Record] = []
    try:
        for line in read_jsonl(file):
            found.append(checked(line))
    except (ValueError, RecursionError) as error:
        line = len(found) + 1
        raise StateError(
            f"{str(file)!r} is damaged in line {line}: {_explained(error)}. Delete the broken line."
        ) from None
    return found


def write_summary(file: Path, summary: RunSummary) -> None:
    """Write `summary.json`, whole or not at all."""
    write_json(file, asdict(summary))


def read_summary(file: Path) -> RunSummary | None:
    """What `write_summary` wrote; None without the file.

    Raises:
        StateError: The file is damaged, or of another version.
    """
    if not file.exists():
        return None
    try:
        value = json.loads(file.read_bytes())
        version = value.get("version") if isinstance(value, dict) else None
        if isinstance(version, int):
            check_version(repr(str(file)), version, SUMMARY_VERSION)
        return _adapter(RunSummary).validate_python(value)
    except StateError:
        raise
    except (ValueError, RecursionError) as error:
        raise StateError(f"{str(file)!r} is damaged: {_explained(error)}. Delete it and resume.") from None


def _explained(error: Exception) -> str:
    """What is wrong; of a record its first mistake."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the record"
    return f"{where} is {first['input']!r}: {first['msg'].lower()}"


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
