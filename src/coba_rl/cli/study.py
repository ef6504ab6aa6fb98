"""`coba-rl study`: compare strategies on the lab's embedded task."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from coba_rl.errors import ConfigError
from coba_rl.packages import need

if TYPE_CHECKING:
    from coba_rl.lab import Study, StudyResults


def study(
    config: str = "main",
    *,
    seeds: str | None = None,
    steps: Count | None = None,
    workers: Count | None = None,
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    started = time.monotonic()
    with StudyProgress(chosen) as progress:
        try:
            results = run_study(chosen, output_dir / "runs", workers or cores, progress.update)
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


def _print_studies() -> None:
    from coba_rl.lab import load_study, shipped_studies

    studies = {name: load_study(name) for name in shipped_studies()}
    rows = [[name, str(len(study.runs())), study.title] for name, study in studies.items()]
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
    """All runs of a study on one bar, counted in steps; plain lines where there is no terminal."""

    def __init__(self, study: Study) -> None:
        runs = study.runs()
        self._steps = {run.key: run.config.steps for run in runs}
        self._names = {run.key: f"{run.arm}, {run.setting}, seed {run.config.seed}" for run in runs}
        self._done = dict.fromkeys(self._steps, 0)
        console = Console(stderr=True)
        self._live = console.is_interactive
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not self._live
        )
        self._all = self._bar.add_task("all runs, steps", total=sum(self._steps.values()))
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, key: str, step: int) -> None:
        """Take in that a run has finished a step."""
        self._done[key] = step
        self._bar.update(self._all, completed=sum(self._done.values()))
        if step == self._steps[key]:
            if key in self._tasks:
                self._bar.remove_task(self._tasks.pop(key))
            if not self._live:
                num = sum(done == self._steps[k] for k, done in self._done.items())
                print(f"{num}/{len(self._steps)} runs: {self._names[key]}", file=sys.stderr, flush=True)
        elif key in self._tasks:
            self._bar.update(self._tasks[key], completed=step)
        else:
            self._tasks[key] = self._bar.add_task(self._names[key], total=self._steps[key])


def print_results(results: StudyResults) -> None:
    """One table a setting: accuracy at the end, area, and the difference to each baseline."""
    from coba_rl.lab.comparison import comparison_rows, counted_seeds

    for setting in results.groups:
        columns, rows = comparison_rows(results, setting)
        print_table(f"{results.study.title}: {setting}, {counted_seeds(results.study)}", columns, rows)
