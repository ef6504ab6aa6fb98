"""`coba-rl bench`: runs the races that were asked for and shows what they came to."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from coba_rl.bench import QUICK, Effort, Part, as_dict, measure, write_parts
from coba_rl.bench.results import COLUMNS, cells, facts
from coba_rl.cli.outputs import check_folder
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import print_json, print_table
from coba_rl.packages import need

_HOSTS, _QUICK_HOSTS = (40, 64), (2, 8)
"""Steps of each trainer, and prompts of a step."""


@dataclass(frozen=True)
class BenchCommand:
    """Fields are the command's parameters."""

    quick: bool
    hosts: bool
    output_dir: Path | None
    json: bool

    def run(self) -> int:
        self._check()
        warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, about one another
        parts = self._measure()
        if self.output_dir is not None:
            write_parts(parts, self.output_dir)
        if self.json:
            print_json(as_dict(parts))
        else:
            print_parts(parts)
        return 0

    def _check(self) -> None:
        if self.hosts:
            need(["torch", "trl"], "--hosts")
        if self.output_dir is not None:
            need(["matplotlib", "jinja2"], "--output-dir")
            check_folder(self.output_dir)

    def _measure(self) -> list[Part]:
        if not self.hosts:
            with counting("measurements") as progress:
                return measure(QUICK if self.quick else Effort(), progress)
        from coba_rl.bench.hosts import measure_hosts

        with counting("steps") as progress:
            return [measure_hosts(*(_QUICK_HOSTS if self.quick else _HOSTS), progress)]


def print_parts(parts: list[Part]) -> None:
    """A table of each part, and what else it found."""
    for part in parts:
        if part.rows:
            print_table(part.title, COLUMNS, [cells(row) for row in part.rows])
            print(part.reading)
        for line in facts(part):
            print(line)
