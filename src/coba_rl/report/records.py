"""The records of a training run, read from its folder into arrays.

Axes: `_S` steps, `_A` allocations (one entry for each prompt of each step, in the order of the steps).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.evaluate import Estimate
from coba_rl.files import read_jsonl


@dataclass(frozen=True, eq=False)
class Allocations:
    """What each prompt of each step was given and what came of it; all arrays have shape (A,)."""

    step_A: np.ndarray
    """Step of the allocation, counted from 1."""
    prompt_A: list[str]
    """Id of the prompt."""
    pass_rate_A: np.ndarray
    """Pass rate believed when allocating, in [0, 1]; NaN where nothing was believed."""
    budget_A: np.ndarray
    """Rollouts given."""
    successes_A: np.ndarray
    """Rollouts that succeeded; fractional for graded success."""
    attempts_A: np.ndarray
    """Rollouts that were judged."""

    @classmethod
    def from_records(cls, records: Iterable[dict[str, Any]]) -> Allocations:
        """Columns of the lines of `allocations.jsonl`.

        Raises:
            KeyError: A record lacks one of the columns.

        Example:
            >>> line = {"step": 1, "prompt_id": "a", "pass_rate": None, "budget": 4}
            >>> Allocations.from_records([line | {"successes": 1.0, "attempts": 4}]).budget_A.tolist()
            [4.0]
        """
        rows = list(records)
        names = ("step", "pass_rate", "budget", "successes", "attempts")
        columns = [_as_floats([row[name] for row in rows]) for name in names]
        step_A, *numbers = columns
        return cls(step_A.astype(np.int64), [str(row["prompt_id"]) for row in rows], *numbers)

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
    heldout: list[tuple[int, Estimate]]
    """(step, accuracy after it) of the held-out measurements, with the 95 % interval; step 0 is before training."""
    allocations: Allocations
    summary: dict[str, Any] | None
    """`summary.json`; None while the run is unfinished."""

    def metric(self, name: str) -> np.ndarray:
        """(S,) values of one metric, NaN where it was not logged.

        Raises:
            ConfigError: A value that is not a number.
        """
        try:
            return _as_floats([record.get(name) for record in self.metrics])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{str(self.folder / 'metrics.jsonl')!r} is damaged: {name} is not a number everywhere ({error})."
            ) from None

    @property
    def strategy(self) -> str:
        """Name of the strategy, or `unknown`."""
        named = self.config.get("allocation", {}).get("strategy") or (self.summary or {}).get("strategy")
        return str(named or "unknown")

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
        folder: Holds `metrics.jsonl`, `allocations.jsonl` and, where there are any, `config.toml` and
            `summary.json`.

    Raises:
        ConfigError: No records in the folder, or a damaged file.
    """
    records = _merge_by_step(_read_lines(folder / "metrics.jsonl"))
    metrics = [record for record in records if record["step"] > 0]  # before training, only held-out accuracy
    try:
        allocations = Allocations.from_records(_read_lines(folder / "allocations.jsonl"))
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"lacks the key {error}" if isinstance(error, KeyError) else f"has a wrong value ({error})"
        raise ConfigError(
            f"{str(folder / 'allocations.jsonl')!r}: a record {wrong}; expected step, prompt_id, pass_rate, budget, "
            "successes and attempts in each. Write the records with `coba-rl train`."
        ) from None
    if not records and not len(allocations):
        raise ConfigError(
            f"{str(folder)!r} holds no run records: expected metrics.jsonl or allocations.jsonl with at "
            "least one line. Give the output folder of `coba-rl train` once its first step is done."
        )
    config_text = _read_text(folder / "config.toml") or ""
    summary_text = _read_text(folder / "summary.json")
    try:
        config = tomllib.loads(config_text)
        summary = None if summary_text is None else json.loads(summary_text)
    except ValueError as error:
        raise ConfigError(
            f"{str(folder)!r}: config.toml or summary.json is damaged ({error}). Restore it, or delete it "
            "to leave it out of the report."
        ) from None
    steps = np.array([record["step"] for record in metrics], dtype=np.int64)
    heldout = _heldout(records)
    return RunRecords(folder, config_text, config, steps, metrics, heldout, allocations, summary)


def _heldout(records: list[dict[str, Any]]) -> list[tuple[int, Estimate]]:
    names = ("heldout/accuracy", "heldout/low", "heldout/high")
    measured = [record for record in records if record.get(names[0]) is not None]
    try:
        return [
            (record["step"], Estimate(*_as_floats([record.get(name) for name in names]).tolist()))
            for record in measured
        ]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metrics.jsonl is damaged: held-out accuracy is not a number everywhere ({error})."
        ) from None


def _read_text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8-sig") if file.exists() else None


def _read_lines(file: Path) -> list[dict[str, Any]]:
    try:
        records = list(read_jsonl(file))
        if not all(isinstance(record, dict) for record in records):
            raise ValueError("a line is not an object")
        return records
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{str(file)!r} is damaged: {error}. Expected one JSON object a line; delete the broken line."
        ) from None


def _merge_by_step(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record a step, in order: several optimiser steps may log under the same one; the last counts."""
    merged: dict[int, dict[str, Any]] = {}
    for record in records:
        if not isinstance(record.get("step"), int):
            raise ConfigError(
                "metrics.jsonl: a record lacks the key 'step'; expected a whole number in each."
            )
        merged.setdefault(int(record["step"]), {}).update(record)
    return [merged[step] for step in sorted(merged)]


def _as_floats(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=float)
