"""`coba-rl study`: compare strategies on the lab's embedded task."""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from coba_rl.cli.outputs import check_folder
from coba_rl.cli.packages import need
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import ConfigError
from coba_rl.files import write_atomic, write_json
from coba_rl.lab.comparison import StudyResults, comparison_rows
from coba_rl.lab.provenance import made_by
from coba_rl.lab.runner import run_study
from coba_rl.lab.study import Study, load_study, shipped_studies


@dataclass(frozen=True)
class StudyCommand:
    """Arguments of the command, see `coba-rl study --help`."""

    config: str
    seeds: str | None
    steps: int | None
    workers: int
    output_dir: Path
    list_studies: bool
    json: bool

    def run(self) -> int:
        """Run what is missing, write tables and page, print the comparison."""
        if self.list_studies:
            self._list()
            return 0
        check_folder(self.output_dir)
        need(("torch", "transformers", "scipy", "matplotlib", "jinja2"), "a study")
        changes: dict[str, Any] = {} if self.seeds is None else {"seeds": parse_seeds(self.seeds)}
        if self.steps is not None:
            changes["base"] = {"steps": self.steps}
        study = load_study(self.config, **changes)
        folder = self.output_dir / Path(self.config).stem
        started = time.monotonic()
        with StudyProgress(study) as progress:
            try:
                records = run_study(study, self.output_dir / "runs", self.workers, progress.update)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"Finished runs are kept in {str(self.output_dir)!r}: the same command goes on."
                ) from None
        results = StudyResults(study, records, made_by())
        write_results(results, folder)
        if self.json:
            print_json(summary(results))
        else:
            print_results(results)
            print(
                f"\n{len(records)} runs in {time.monotonic() - started:.0f} s. Page: {folder / 'report.html'}"
            )
        return 0

    def _list(self) -> None:
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
        finished = step == self._steps[key]
        self._bar.update(self._all, completed=sum(self._done.values()))
        if finished:
            if key in self._tasks:
                self._bar.remove_task(self._tasks.pop(key))
            num = sum(self._done[k] == self._steps[k] for k in self._steps)
            if not self._live:
                print(f"{num}/{len(self._steps)} runs: {self._names[key]}", file=sys.stderr, flush=True)
        elif key in self._tasks:
            self._bar.update(self._tasks[key], completed=step)
        else:
            self._tasks[key] = self._bar.add_task(self._names[key], total=self._steps[key])


def write_results(results: StudyResults, folder: Path) -> None:
    """`results.csv` (one row a measured point), `comparisons.csv`, `tables.md`, `summary.json`, `report.html`."""
    from coba_rl.report.study_report import write_study_report

    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "results.csv", _csv(results.tidy()))
    write_atomic(folder / "comparisons.csv", _csv([c.as_dict() for c in results.comparisons()]))
    write_atomic(folder / "tables.md", markdown_tables(results))
    write_json(folder / "summary.json", summary(results))
    write_study_report(results, folder / "report.html")


def markdown_tables(results: StudyResults) -> str:
    """The tables of the terminal, for a README: one a setting, below a line that says what they show."""
    study = results.study
    parts = [
        f"{study.title}. {study.question} {_seeds(study)}: mean with its 95 % interval over seeds (Student's t); "
        "differences pair the seeds, in brackets on how many the arm was ahead. Tokens are those generated in training. "
        f"{results.made_by}"
    ]
    for setting in results.groups:
        columns, rows = comparison_rows(results, setting)
        lines = [[setting, *columns[1:]], ["---", *["---:"] * (len(columns) - 1)], *rows]
        parts.append("\n".join(f"| {' | '.join(map(_markdown, cells))} |" for cells in lines))
    return "\n\n".join(parts) + "\n"


def _markdown(cell: str) -> str:
    """A cell whose text is no markup of the table, of HTML or of a formula."""
    return re.sub(r"([\\|<$])", r"\\\1", cell)


def _seeds(study: Study) -> str:
    return f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def summary(results: StudyResults) -> dict[str, Any]:
    """Everything the tables show, fit for JSON."""
    study = results.study
    return {
        "study": study.model_dump(),
        "made_by": results.made_by,
        "arms": [
            {
                "setting": setting,
                "arm": arm,
                "tokens": results.tokens(setting, arm, study.baselines[0]),
                **{m: results.estimate(setting, arm, m).as_dict() for m in ("final", "area")},
            }
            for setting in results.groups
            for arm in study.arms
        ],
        "comparisons": [comparison.as_dict() for comparison in results.comparisons()],
        "processor_seconds": sum(record.seconds for record in results.records),
    }


def print_results(results: StudyResults) -> None:
    """One table a setting: accuracy at the end, area, and the difference to each baseline."""
    for setting in results.groups:
        columns, rows = comparison_rows(results, setting)
        print_table(f"{results.study.title}: {setting}, {_seeds(results.study)}", columns, rows)
