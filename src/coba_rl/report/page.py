"""Sections of text, figures and tables → one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coba_rl.errors import ConfigError
from coba_rl.files import write_atomic


@dataclass(frozen=True)
class Figure:
    """An SVG element with what it shows and how to read it."""

    title: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it."""

    caption: str
    columns: Sequence[str]
    """Headings; empty for a list of facts."""
    rows: Sequence[Sequence[str]]
    collapsed: bool = False
    """Whether the reader has to open it."""
    shades: Sequence[Sequence[float]] | None = None
    """How dark each cell after the first is, in [−1, 1]; blue above 0, orange below."""


@dataclass(frozen=True)
class Code:
    """Preformatted text that the reader has to open."""

    caption: str
    text: str


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    id: str
    title: str
    blocks: Sequence[str | Sequence[Figure] | Table | Code]
    """A text is a paragraph; figures of one block stand side by side where there is room."""


def write_page(
    target: Path, title: str, make_sections: Callable[[], Sequence[Section]], subtitle: str = ""
) -> None:
    """Draw and write a page, whole or not at all.

    Args:
        target: The page.
        title, subtitle: As for `render_page`.
        make_sections: Draws the sections.

    Raises:
        ConfigError: The page cannot be written.
        ImportError: matplotlib or jinja2 is not installed.
    """
    try:
        html = render_page(title, make_sections(), subtitle)
    except ModuleNotFoundError as error:
        raise ImportError(f"reports need {error.name}: pip install 'coba-rl[report]'") from error
    try:
        write_atomic(target, html)
    except OSError as error:
        raise ConfigError(
            f"The report {str(target)!r} cannot be written: {error}. Choose an output in a folder that "
            "exists and can be written."
        ) from None


def render_page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The HTML of a page. Everything but the SVG of figures is escaped.

    Args:
        title: Heading and document title.
        sections: In the order of reading.
        subtitle: A line below the heading.

    Example:
        >>> page = render_page("R&D", [Section("verdict", "Verdict", ["a < b"])])
        >>> "<title>R&amp;D</title>" in page, "<p>a &lt; b</p>" in page
        (True, True)
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("coba_rl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(title=title, subtitle=subtitle, sections=sections)
