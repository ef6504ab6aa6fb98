"""`coba-rl study`: compare strategies on the lab's embedded task."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any  # `list` is a flag of the command

from cyclopts import Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from coba_rl.cli.arguments import Count
from coba_rl.cli.outputs import check_folder
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import ConfigError, suggestion
from coba_rl.packages import need

if TYPE_CHECKING:
    from coba_rl.lab import Study, StudyResults
    from coba_rl.lab.study import Cell, StudyRun

Names = Annotated[list[str] | None, Parameter(negative=())]


def study(
    config: str = "main",
    *,
    seeds: str | None = None,
    steps: Count | None = None,
    workers: Count | None = None,
    settings: Names = None,
    arms: Names = None,
    report_only: bool = False,
    output_dir: Path = Path("runs/studies"),
    list: bool = False,
    json: bool = False,
) -> None:
    """Compare strategies on the embedded task: every arm, in every setting, on the same seeds.

    Runs are small and exact: a GRPO loop on one core each, held-out accuracy computed rather than sampled.
    Finished runs are kept and shared between studies, so the same command goes on where it was stopped.
    `runs/studies/NAME` gets `results.csv` (one row a measured point), `comparisons.csv`, `tables.md`,
    `summary.json` and `report.html`.

    `coba-rl study --list` names the shipped studies. A study of your own is a TOML file: copy a shipped one
    and change its arms; keys are the fields of `coba_rl.lab.config.LabConfig`.

    Parameters
    ----------
    config
        Name of a shipped study, or a TOML file.
    seeds
        Seeds instead of the study's, e.g. 0,1,2 or 10-14.
    steps
        Training steps instead of the study's.
    workers
        Runs at a time, one core each. Default: the cores there are.
    settings
        Run this setting only; give it several times for several. The page shows all that has been run so far.
    arms
        Run this arm only; as `--settings`.
    report_only
        Run nothing: make the page of what has been run so far.
    output_dir
        Where the studies' folders and their runs go.
    list
        Show the shipped studies and how many runs each takes.
    json
        Print the summary as JSON instead of tables.
    """
    if list:
        _print_studies()
        return
    check_folder(output_dir)
    need(("torch", "transformers", "scipy", "matplotlib", "jinja2"), "a study")
    from coba_rl.lab import load_study, run_study
    from coba_rl.report import write_study

    changes: dict[str, Any] = {} if seeds is None else {"seeds": parse_seeds(seeds)}
    if steps is not None:
        changes["base"] = {"steps": steps}
    chosen, folder = load_study(config, **changes), output_dir / Path(config).stem
    cells = [] if report_only else _cells(chosen, settings, arms)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    started = time.monotonic()
    with StudyProgress() as progress:
        try:
            results = run_study(chosen, output_dir / "runs", workers or cores, progress.update, cells)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Finished runs are kept in {str(output_dir)!r}: the same command goes on."
            ) from None
    write_study(results, folder)
    if json:
        print_json(results.summary())
    else:
        print_results(results)
        seconds = time.monotonic() - started
        print(f"\n{len(results.records)} runs in {seconds:.0f} s. Page: {folder / 'report.html'}")


def _cells(study: Study, settings: list[str] | None, arms: list[str] | None) -> list[Cell]:
    """The settings and arms to run.

    Raises:
        ConfigError: The study has no such setting or arm.
    """
    for flag, given, known in (("--settings", settings, study.settings), ("--arms", arms, study.arms)):
        for name in given or ():
            if name not in known:
                raise ConfigError(f"{flag} is {name!r}, which is not in the study. {suggestion(name, known)}")
    return [
        (setting, arm)
        for setting, arm in study.cells
        if setting in (settings or study.settings) and arm in (arms or study.arms)
    ]


def _print_studies() -> None:
    from coba_rl.lab import load_study, shipped_studies

    studies = {name: load_study(name) for name in shipped_studies()}
    rows = [[name, str(study.num_runs), study.title] for name, study in studies.items()]
    print_table("Shipped studies", ["study", "runs", "title"], rows)


def parse_seeds(text: str) -> list[int]:
    """Seeds written as `0,1,2` or `10-14`.

    Raises:
        ConfigError: Anything else.

    Example:
        >>> parse_seeds("10-12,20")
        [10, 11, 12, 20]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(
                f"--seeds is {text!r}, expected whole numbers such as 0,1,2 or ranges such as 10-14."
            )
        seeds += range(int(first), int(last if dash else first) + 1)
    return seeds


class StudyProgress:
    """All runs of a study on one bar, each a part of it as its steps are; plain lines where there is no terminal."""

    def __init__(self) -> None:
        self._done: dict[str, float] = {}
        console = Console(stderr=True)
        self._live = console.is_interactive
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not self._live
        )
        self._all = self._bar.add_task("all runs", total=None)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, run: StudyRun, step: int, num_runs: int) -> None:
        """Take in that a run has finished a step, and how many runs there are."""
        name = f"{run.arm}, {run.setting}, seed {run.config.seed}, lr {run.config.learning_rate:g}"
        self._done[run.key] = step / run.config.steps
        self._bar.update(self._all, completed=sum(self._done.values()), total=num_runs)
        if step == run.config.steps:
            if run.key in self._tasks:
                self._bar.remove_task(self._tasks.pop(run.key))
            if not self._live:
                num = sum(done == 1.0 for done in self._done.values())
                print(f"{num}/{num_runs} runs: {name}", file=sys.stderr, flush=True)
        elif run.key in self._tasks:
            self._bar.update(self._tasks[run.key], completed=step)
        else:
            self._tasks[run.key] = self._bar.add_task(name, total=run.config.steps)


def print_results(results: StudyResults) -> None:
    """The tables that the page begins with, and one a setting: accuracy, and the difference to each baseline."""
    from coba_rl.report.study_tables import comparison_rows, counted_seeds, summary_tables

    for table in summary_tables(results):
        print_table(table.caption, table.columns, table.rows)
    for setting in results.groups:
        columns, rows = comparison_rows(results, setting)
        print_table(f"{results.study.title}: {setting}, {counted_seeds(results.study)}", columns, rows)
