"""The report of a training run: run folder → sections → `report.html`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from coba_rl.report.page import Code, Section, Table, write_page
from coba_rl.report.records import RunRecords, read_run
from coba_rl.report.run_sections import (
    budget_section,
    dead_groups_section,
    learning_section,
    preference_section,
    transition_section,
)
from coba_rl.report.verdict import key_facts, verdict

_MOST_ROWS = 50


def write_run_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of a training run as one self-contained HTML page.

    The page depends on the records alone: the same records give the same bytes. A run that is not finished is
    reported as far as it got.

    Args:
        folder: The run's folder, as `coba-rl train` or a job of verl's leaves it.
        output: The page; unset: `report.html` in the folder.

    Returns:
        The path of the page, which is written whole or not at all.

    Raises:
        ConfigError: No records in the folder, or a page that cannot be written.
        StateError: A damaged file.
        ImportError: matplotlib or jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as empty:
        ...     write_run_report(Path(empty))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coba_rl.errors.ConfigError: '...' holds no run records: ...
    """
    folder = Path(folder)
    target = folder / "report.html" if output is None else Path(output)
    run = read_run(folder)
    write_page(target, _title(run), lambda: run_sections(run))
    return target


def run_sections(run: RunRecords) -> list[Section]:
    """The sections of a run's report, in the order of reading; those of `SECTIONS` that have something to say."""
    return [section for make in SECTIONS if (section := make(run)) is not None]


def _title(run: RunRecords) -> str:
    task = run.config.get("task", {}).get("name")
    return "Training run" + (f": {run.strategy}" if run.strategy else "") + (f" on {task}" if task else "")


_COLUMNS = {
    "step": ("step", ",.0f"),
    "success per prompt": ("coba/success_per_prompt", ".3f"),
    "F̄": ("coba/failure_rate", ".3f"),
    "F̃": ("coba/transformed_failure_rate", ".3f"),
    "α": ("coba/alpha", ".3f"),
    "β": ("coba/beta", ".3f"),
    "τ": ("coba/tau", ".3g"),
    "fewest rollouts": ("coba/budget_min", ",.0f"),
    "most rollouts": ("coba/budget_max", ",.0f"),
    "all wrong": ("coba/dead_groups_all_wrong", ".3f"),
    "all right": ("coba/dead_groups_all_right", ".3f"),
}
"""Heading of the table of numbers → metric and its format."""


def _numbers_section(run: RunRecords) -> Section:
    """The logged numbers behind the figures, thinned out evenly for long runs."""
    title = "Numbers behind the figures"
    num = len(run.metrics)
    if not num:
        return Section("numbers", title, ["No step has been logged, so there are no metrics to show."])
    shown = np.unique(np.linspace(0, num - 1, min(num, _MOST_ROWS)).round().astype(int)).tolist()
    columns = [name for name, (key, _) in _COLUMNS.items() if np.isfinite(run.metric(key)).any()]
    rows = [
        [_cell(run.metrics[i].get(_COLUMNS[name][0]), _COLUMNS[name][1]) for name in columns] for i in shown
    ]
    caption = "Show every step" if len(shown) == num else f"Show {len(shown)} of {num:,} steps"
    return Section("numbers", title, [Table(caption, columns, rows, collapsed=True)])


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)


def _verdict_section(run: RunRecords) -> Section:
    facts = Table("The run", [], key_facts(run))
    return Section("verdict", "What this run shows", [*verdict(run), facts])


def _configuration_section(run: RunRecords) -> Section | None:
    code = Code("Show the resolved configuration", run.config_text)
    return Section("configuration", "Configuration", [code]) if run.config_text else None


SECTIONS: tuple[Callable[[RunRecords], Section | None], ...] = (
    _verdict_section,
    learning_section,
    budget_section,
    preference_section,
    dead_groups_section,
    transition_section,
    _numbers_section,
    _configuration_section,
)
"""What a run's page consists of; None leaves a section out."""
