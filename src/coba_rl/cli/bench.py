"""`coba-rl bench`: runs the races that were asked for and shows what they came to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from coba_rl.cli.outputs import check_folder
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import print_json, print_table
from coba_rl.packages import need

if TYPE_CHECKING:
    from coba_rl.bench import Part

_HOSTS, _QUICK_HOSTS = (40, 64), (2, 8)
"""Steps of each trainer, and prompts of a step."""


def bench(
    *, quick: bool = False, hosts: bool = False, output_dir: Path | None = None, json: bool = False
) -> None:
    """Measure how fast budgets are found, and what that costs a training run.

    Everything runs in one process, and what is compared takes turns in short rounds: read the ratios, which hardly
    depend on the machine and on what else it does, before the times. The spread is that of the ratios over rounds;
    where it includes 1 the two cannot be told apart.

    Measured are the solvers (the paper's heap as printed, ours, dynamic programming, the fast one) and all strategies
    on batches of 64 to 1,000,000 prompts; `allocate`, `observe`, saving and loading; and an allocator that knows up
    to 10 million prompts. It takes a few minutes and 2 GB of memory.

    Parameters
    ----------
    quick
        Small batches and few rounds: half a minute.
    hosts
        Measure instead what the TRL host adds to a training step: stock TRL, `uniform` and `coba` take turns step by
        step. Needs the extra `trl`.
    output_dir
        Folder for results.json, tables.md, scaling.svg and report.html. Needs the extra `report`.
    json
        Print JSON instead of tables.
    """
    if hosts:
        need(["torch", "trl"], "--hosts")
    if output_dir is not None:
        need(["matplotlib", "jinja2"], "--output-dir")
        check_folder(output_dir)
    from coba_rl.bench import as_dict, write_parts

    warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, about one another
    parts = _measure(quick, hosts)
    if output_dir is not None:
        write_parts(parts, output_dir)
    if json:
        print_json(as_dict(parts))
    else:
        print_parts(parts)


def _measure(quick: bool, hosts: bool) -> list[Part]:
    if not hosts:
        from coba_rl.bench import QUICK, Effort, measure

        with counting("measurements") as progress:
            return measure(QUICK if quick else Effort(), progress)
    from coba_rl.bench.hosts import measure_hosts

    with counting("steps") as progress:
        return [measure_hosts(*(_QUICK_HOSTS if quick else _HOSTS), progress)]


def print_parts(parts: list[Part]) -> None:
    """A table of each part, and what else it found."""
    from coba_rl.bench.results import COLUMNS, cells, facts

    for part in parts:
        if part.rows:
            print_table(part.title, COLUMNS, [cells(row) for row in part.rows])
            print(part.reading)
        for line in facts(part):
            print(line)
