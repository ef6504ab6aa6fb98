"""What the races came to: as JSON, as Markdown, as a figure and as a page."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coba_rl.bench.race import Part, Row
from coba_rl.files import write_atomic, write_json
from coba_rl.report import drawing
from coba_rl.report.page import Figure, Section, Table, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLUMNS = ["", "prompts", "CPU time", "ratio", "80 % of the ratios"]
"""Headings of `cells`."""


def as_dict(parts: list[Part]) -> dict[str, Any]:
    """Everything, JSON-able."""
    measured = {part.id: {"rows": list(map(asdict, part.rows)), "facts": part.facts} for part in parts}
    return {"machine": _machine(), "parts": measured}


def _machine() -> dict[str, Any]:
    """All that matters to a race on one core."""
    return {"python": platform.python_version(), "cpus": os.cpu_count()}


def write_parts(parts: list[Part], folder: Path) -> None:
    """`results.json`, `tables.md`, `scaling.svg` (where there are several sizes) and `report.html`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", as_dict(parts))
    write_atomic(folder / "tables.md", markdown(parts))
    svg = draw_scaling(parts)
    if svg is not None:
        write_atomic(folder / "scaling.svg", svg + "\n")
    machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
    write_page(folder / "report.html", "coba-rl bench", lambda: _sections(parts, svg), machine)


def markdown(parts: list[Part]) -> str:
    """A section for each part, with a column for each number of prompts.

    The first contender has its CPU time, the others their ratio with the middle 80 % of it.
    """
    sections = []
    for part in parts:
        lines = [f"## {part.title}", part.reading]
        if part.rows:
            lines.append("\n".join(_pivot(part.rows)))
        if part.facts:
            lines.append("\n".join(f"- {line}" for line in facts(part)))
        sections.append("\n\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _pivot(rows: list[Row]) -> list[str]:
    sizes = sorted({row.prompts for row in rows})
    names = list(dict.fromkeys(row.name for row in rows))
    found = {(row.name, row.prompts): row for row in rows}
    lines = [f"| prompts | {' | '.join(f'{size:,}' for size in sizes)} |", f"|---|{'---:|' * len(sizes)}"]
    for name in names:
        shown = [_time_or_ratio(found.get((name, size))) for size in sizes]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def _time_or_ratio(row: Row | None) -> str:
    if row is None:
        return "–"
    if row.low == row.ratio == row.high == 1.0:
        return _duration(row.seconds)
    spread = f" ({row.low:.3g} – {row.high:.3g})" if row.low < row.high else ""  # none of a single round
    return f"{row.ratio:.3g}×{spread}"


def cells(row: Row) -> list[str]:
    """A row as text."""
    return [
        row.name,
        f"{row.prompts:,}",
        _duration(row.seconds),
        f"{row.ratio:.3g}",
        f"{row.low:.3g} – {row.high:.3g}",
    ]


def facts(part: Part) -> list[str]:
    """What a part found besides its rows, a line each."""
    return [f"{name}: {_value(value)}" for name, value in part.facts.items()]


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


def draw_scaling(parts: list[Part]) -> str | None:
    """CPU time of a call over the number of prompts; None when no part has several sizes."""
    shown = [part for part in parts if len({row.prompts for row in part.rows}) > 1]
    if not shown:
        return None

    def paint(figure: Canvas) -> None:
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for part, axes in zip(shown, panels, strict=True):
            _paint_part(part, axes)

    return drawing.draw(
        "bench", "CPU time of a call over the number of prompts", paint, height=3.0 * len(shown)
    )


def _paint_part(part: Part, axes: Axes) -> None:
    for i, name in enumerate(dict.fromkeys(row.name for row in part.rows)):
        rows = [row for row in part.rows if row.name == name]
        axes.plot(
            [row.prompts for row in rows],
            [row.seconds for row in rows],
            label=name,
            **drawing.line_look(i),
            marker=drawing.MARKERS[i % len(drawing.MARKERS)],
            markersize=4,
        )
    axes.set(xscale="log", yscale="log", title=part.title, ylabel="CPU seconds", xlabel="prompts")
    middle = math.sqrt(math.prod(axes.get_ylim()))  # at least a decade, or noise looks like a trend
    axes.set_ylim(min(axes.get_ylim()[0], middle / 5), max(axes.get_ylim()[1], middle * 5))
    axes.legend(loc="upper left", fontsize=7, ncols=2)


def _sections(parts: list[Part], svg: str | None) -> list[Section]:
    """A figure, then every table."""
    caption = "Both axes are logarithmic: a line of slope 1 is a cost that grows as the number of prompts."
    sections = []
    if svg is not None:
        sections.append(Section("figure", "At a glance", [[Figure("Time over prompts", svg, caption)]]))
    for part in parts:
        if part.rows:
            table = Table(part.title, COLUMNS, [cells(row) for row in part.rows])
            sections.append(Section(part.id, part.title, [part.reading, table, *facts(part)]))
    return sections
