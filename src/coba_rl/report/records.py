"""The records of a training run, read from its folder into arrays.

Axes: `_S` steps, `_A` allocations (one entry for each prompt of each step, in the order of the steps).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.errors import ConfigError, StateError
from coba_rl.evaluate import Estimate, mean_estimate
from coba_rl.records import (
    ALLOCATIONS_FILE,
    CONFIG_FILE,
    HELDOUT_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    AllocationRecord,
    EvaluationRecord,
    RunSummary,
    read_metrics,
    read_records,
    read_summary,
)

MEAN_LENGTHS = ("completions/mean_length", "response_length/mean")
"""What TRL and verl call the mean tokens of the completions that a step generated."""


@dataclass(frozen=True, eq=False)
class Allocations:
    """What each prompt of each step was given and what came of it; all arrays have shape (A,)."""

    step_A: np.ndarray
    """Step of the allocation, counted from 1."""
    prompt_A: list[str | int]
    """Id of the prompt."""
    pass_rate_A: np.ndarray
    """Pass rate believed when allocating, in [0, 1]; NaN where nothing was believed."""
    value_A: np.ndarray
    """What the strategy thought of the prompt at the mean budget; NaN where it thought nothing."""
    budget_A: np.ndarray
    """Rollouts given."""
    successes_A: np.ndarray
    """Rollouts that succeeded; fractional for graded success."""
    attempts_A: np.ndarray
    """Rollouts that were judged."""

    @classmethod
    def from_records(cls, records: Iterable[AllocationRecord]) -> Allocations:
        """Columns of the lines of `allocations.jsonl`.

        Example:
            >>> record = AllocationRecord(1, "a", pass_rate=None, value=None, budget=4, successes=1.0, attempts=4)
            >>> Allocations.from_records([record]).budget_A.tolist()
            [4.0]
        """
        rows = list(records)
        step_A = np.array([row.step for row in rows], dtype=np.int64)
        names = ("pass_rate", "value", "budget", "successes", "attempts")
        numbers = (_as_floats([getattr(row, name) for row in rows]) for name in names)
        return cls(step_A, [row.prompt_id for row in rows], *numbers)

    def __len__(self) -> int:
        return len(self.prompt_A)


@dataclass(frozen=True, eq=False)
class RunRecords:
    """Everything a run folder says about its run."""

    folder: Path
    config_text: str
    """`config.toml` as written; empty without one."""
    config: dict[str, Any]
    """The same, parsed."""
    step_S: np.ndarray
    """Steps with metrics, rising."""
    metrics: list[dict[str, Any]]
    """One merged record for each entry of `step_S`."""
    heldout: list[EvaluationRecord]
    """The held-out measurements, in their order."""
    allocations: Allocations
    summary: RunSummary | None
    """None while the run is unfinished."""

    def metric(self, name: str) -> np.ndarray:
        """(S,) values of one metric, NaN where it was not logged.

        Raises:
            StateError: A value that is not a number.
        """
        try:
            return _as_floats([record.get(name) for record in self.metrics])
        except (TypeError, ValueError) as error:
            raise StateError(
                f"{str(self.folder / METRICS_FILE)!r} is damaged: {name} is not a number everywhere ({error}). Delete "
                "the broken line."
            ) from None

    @property
    def mean_length_S(self) -> np.ndarray:
        """(S,) mean tokens of the completions generated for each step, NaN where none was logged."""
        of_trl_S, of_verl_S = map(self.metric, MEAN_LENGTHS)
        return np.where(np.isnan(of_trl_S), of_verl_S, of_trl_S)

    @property
    def heldout_accuracy(self) -> list[tuple[int, Estimate]]:
        """(step, mean accuracy after it with its 95 % interval over problems), where a problem was judged."""
        judged = [
            (record.step, [a for a in record.accuracy.values() if a is not None]) for record in self.heldout
        ]
        return [(step, mean_estimate(accuracy_P)) for step, accuracy_P in judged if accuracy_P]

    @property
    def strategy(self) -> str | None:
        """Name of the strategy; None where no file tells."""
        named = self.config.get("allocation", {}).get("strategy")
        if named or self.summary is None:
            return named and str(named)
        return self.summary.strategy

    @property
    def planned_steps(self) -> int | None:
        """Steps that the configuration asks for."""
        return self.config.get("training", {}).get("steps")

    @property
    def steps_done(self) -> int:
        """The last step with a record."""
        return int(max(self.step_S.max(initial=0), self.allocations.step_A.max(initial=0)))


def read_run(folder: Path) -> RunRecords:
    """Read a run folder; a run that was stopped, or is still going on, counts as far as it got.

    Args:
        folder: Holds `metrics.jsonl` or `allocations.jsonl` and, where there are any, `config.toml`, `heldout.jsonl`
            and `summary.json`: the folder of a run, or `trainer.default_local_dir` of a job of verl's.

    Raises:
        ConfigError: No records in the folder.
        StateError: A damaged file.
    """
    logged = _merge_by_step(read_metrics(folder / METRICS_FILE))
    heldout = read_records(folder / HELDOUT_FILE, EvaluationRecord)
    allocations = Allocations.from_records(read_records(folder / ALLOCATIONS_FILE, AllocationRecord))
    if not logged and not heldout and not len(allocations):
        raise ConfigError(
            f"{str(folder)!r} holds no run records: expected metrics.jsonl or allocations.jsonl with at least one "
            "line. Give the output folder of `coba-rl train`, or trainer.default_local_dir of a job of verl's, once "
            "its first step is done."
        )
    config_text, config = _read_config(folder / CONFIG_FILE)
    metrics = [record for record in logged if record["step"] > 0]  # before training, only held-out accuracy
    step_S = np.array([record["step"] for record in metrics], dtype=np.int64)
    summary = read_summary(folder / SUMMARY_FILE)
    return RunRecords(folder, config_text, config, step_S, metrics, heldout, allocations, summary)


def _read_config(file: Path) -> tuple[str, dict[str, Any]]:
    """Text and sections; both empty without the file."""
    if not file.exists():
        return "", {}
    try:
        text = file.read_text(encoding="utf-8-sig")
        return text, {name: part for name, part in tomllib.loads(text).items() if isinstance(part, dict)}
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{str(file)!r} is damaged: {error}. Restore it, or delete it to leave it out of the report."
        ) from None


def _merge_by_step(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record a step, in order: several optimiser steps may log under the same one; the last counts."""
    merged: dict[int, dict[str, Any]] = {}
    for record in records:
        merged.setdefault(record["step"], {}).update(record)
    return [merged[step] for step in sorted(merged)]


def _as_floats(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=float)
