"""Measures, prints and draws."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coba_rl.cli.bench.allocator import (
    measure_calls,
    measure_strategies,
    measure_tables,
    measure_training_step,
)
from coba_rl.cli.bench.race import QUICK, Effort, Part, Row
from coba_rl.cli.bench.solvers import measure_solvers
from coba_rl.cli.env import describe
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import ConfigError
from coba_rl.files import write_atomic
from coba_rl.report import drawing
from coba_rl.report.page import Figure, Figures, Section, Table, Text, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_HOST_STEPS, _HOST_PROMPTS = 12, 64
_QUICK_HOST_STEPS, _QUICK_HOST_PROMPTS = 2, 8
_COLUMNS = ["", "prompts", "CPU time", "ratio", "80 % of the ratios"]


@dataclass(frozen=True)
class BenchCommand:
    """Fields are the command's parameters."""

    quick: bool
    hosts: bool
    output: Path | None
    json: bool

    def run(self) -> int:
        self._check()
        warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, about one another
        parts = self._measure_hosts() if self.hosts else self._measure()
        if self.output is not None:
            svg = draw_scaling(parts)
            page = svg + "\n" if self.output.suffix == ".svg" else render(parts, svg)
            write_atomic(self.output, page)
        if self.json:
            print_json(
                {"machine": describe()["machine"], "parts": {part.id: part.as_dict() for part in parts}}
            )
        else:
            for part in parts:
                _print(part)
        return 0

    def _check(self) -> None:
        if self.output is not None and self.output.suffix not in (".html", ".svg"):
            raise ConfigError(
                f"--output is {str(self.output)!r}: expected a file that ends in .html or .svg."
            )
        needed = (["matplotlib", "jinja2"] if self.output else []) + (["torch", "trl"] if self.hosts else [])
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            extra = "trl" if missing[-1] in ("torch", "trl") else "report"
            raise ConfigError(
                f"This needs {', '.join(missing)}: pip install 'coba-rl[{extra}]', or leave the flag out."
            )

    def _measure(self) -> list[Part]:
        effort = QUICK if self.quick else Effort()
        with _advancing("measurements", 3 * len(effort.sizes) + len(effort.tables) + 1) as advance:
            parts = [
                measure(effort, advance)
                for measure in (measure_solvers, measure_strategies, measure_calls, measure_tables)
            ]
            parts.append(measure_training_step(parts[0]))
            advance()
        return parts

    def _measure_hosts(self) -> list[Part]:
        from coba_rl.cli.bench.hosts import CONTENDERS, measure_hosts

        steps, prompts = (
            (_QUICK_HOST_STEPS, _QUICK_HOST_PROMPTS) if self.quick else (_HOST_STEPS, _HOST_PROMPTS)
        )
        with _advancing("steps", (steps + 2) * len(CONTENDERS)) as advance:
            return [measure_hosts(steps, prompts, advance)]


@contextmanager
def _advancing(what: str, total: int) -> Generator[Callable[[], None]]:
    done = 0
    with counting(what) as progress:

        def advance() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        progress(0, total)
        yield advance


def _print(part: Part) -> None:
    if part.rows:
        print_table(part.title, _COLUMNS, [_cells(row) for row in part.rows])
        print(part.reading)
    for name, value in part.facts.items():
        print(f"{name}: {_value(value)}")


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        f"{row.prompts:,}",
        _duration(row.seconds),
        f"{row.ratio:.3g}",
        f"{row.low:.3g} – {row.high:.3g}",
    ]


def _value(value: float | bool) -> str:
    return ("yes" if value else "NO") if isinstance(value, bool) else f"{value:.3g}"


def _duration(seconds: float) -> str:
    """A time with three digits and the unit that suits it.

    Example:
        >>> _duration(0.000171), _duration(1.25)
        ('171 µs', '1.25 s')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def draw_scaling(parts: list[Part]) -> str:
    """CPU time of a call over the number of prompts, for the parts that have several sizes."""
    shown = [part for part in parts if len({row.prompts for row in part.rows}) > 1] or parts

    def paint(figure: Canvas) -> None:
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for part, axes in zip(shown, panels, strict=True):
            names = list(dict.fromkeys(row.name for row in part.rows))
            for i, name in enumerate(names):
                rows = [row for row in part.rows if row.name == name]
                axes.plot(
                    [row.prompts for row in rows],
                    [row.seconds for row in rows],
                    label=name,
                    color=drawing.LINE_COLOURS[i % len(drawing.LINE_COLOURS)],
                    linestyle=drawing.LINE_STYLES[i // len(drawing.LINE_COLOURS) % len(drawing.LINE_STYLES)],
                    marker=drawing.MARKERS[i % len(drawing.MARKERS)],
                    markersize=4,
                )
            axes.set(xscale="log", yscale="log", title=part.title, ylabel="CPU seconds", xlabel="prompts")
            middle = math.sqrt(math.prod(axes.get_ylim()))  # at least a decade, or noise looks like a trend
            axes.set_ylim(min(axes.get_ylim()[0], middle / 5), max(axes.get_ylim()[1], middle * 5))
            axes.legend(loc="upper left", fontsize=7, ncols=2)

    return drawing.draw(
        "bench", "CPU time of a call over the number of prompts", paint, height=3.0 * len(shown)
    )


def render(parts: list[Part], svg: str) -> str:
    """The page: a figure, then every table."""
    caption = "Both axes are logarithmic: a line of slope 1 is a cost that grows as the number of prompts."
    sections = [
        Section("figure", "At a glance", [Figures([Figure("Time over prompts", svg, caption)])]),
        *(
            Section(
                part.id,
                part.title,
                [
                    Text(part.reading),
                    Table(part.title, _COLUMNS, [_cells(row) for row in part.rows]),
                    *(Text(f"{name}: {_value(value)}") for name, value in part.facts.items()),
                ],
            )
            for part in parts
            if part.rows
        ),
    ]
    machine = ", ".join(f"{name} {value}" for name, value in describe()["machine"].items())
    return render_page("coba-rl bench", sections, machine)
