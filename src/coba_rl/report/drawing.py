"""From a matplotlib figure to an SVG element that can stand inside an HTML page.

Text stays text, so it can be selected and scales with the page; ids are made unique to the figure, so that
many figures share a page; the same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from coba_rl.records import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
"""Okabe and Ito's colours, told apart with every common colour vision."""

GREY = "#9a9a9a"

LINE_STYLES = ("-", "--", "-.", ":")
LINE_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D")

WIDTH = 4.8
"""Inches. Narrow on purpose: shrunk to the width of a phone, text of 10 points can still be read."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}

_SVG = "http://www.w3.org/2000/svg"
_FONT = re.compile(r"'?DejaVu Sans'?[^;]*")


def draw(name: str, title: str, paint: Callable[[Figure], None], height: float = 2.7) -> str:
    """Draw a figure as an SVG element.

    Args:
        name: Short and unique on the page: the id of the element, and what makes the ids in it its own.
        title: What is shown, for those who cannot see it.
        paint: Draws on an empty figure.
        height: Inches; the width is `WIDTH`.

    Returns:
        `<svg role="img" aria-label=…>…</svg>`, without a fixed size.

    Example:
        >>> svg = draw("line", "A line", lambda figure: figure.subplots().plot([0, 1]))
        >>> svg.startswith("<svg"), 'aria-label="A line"' in svg, svg == draw(
        ...     "line", "A line", lambda figure: figure.subplots().plot([0, 1])
        ... )
        (True, True, True)
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw it, not matplotlib's.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the report
        matplotlib.rcParams.update(_STYLE | {"svg.hashsalt": name})  # ty: ignore
        figure = Figure(figsize=(WIDTH, height))
        paint(figure)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    return _embed(buffer.getvalue(), name, title)


def _embed(svg: str, name: str, title: str) -> str:
    """Make a standalone SVG document a well-behaved element of a page."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)
    for defs in root.findall(f"{{{_SVG}}}defs"):
        for style in defs.findall(f"{{{_SVG}}}style"):
            # Its selector `*` would reach the whole page; the attributes below say the same.
            defs.remove(style)
    for group in root.iter(f"{{{_SVG}}}g"):
        group.attrib.pop("id", None)  # the same in every figure, and nothing refers to it
    for element in root.iterfind(".//*[@style]"):
        element.attrib["style"] = _FONT.sub("system-ui, sans-serif", element.attrib["style"])
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.attrib |= {
        "id": name,
        "role": "img",
        "aria-label": title,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
        "font-family": "system-ui, sans-serif",
    }
    label = ElementTree.Element(f"{{{_SVG}}}title")
    label.text = title
    root.insert(0, label)
    return ElementTree.tostring(root, encoding="unicode")


def format_axes(axes: Axes, xlabel: str = "", ylabel: str = "", share: bool = False) -> None:
    """Label the axes; `share` fixes the vertical one to [0, 1]. Numbers get thousands separators."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if share:
        axes.set_ylim(0.0, 1.0)


def line_look(index: int) -> dict[str, Any]:
    """Colour and style of one of many lines: colours first, then other styles, so that no two of 24 look alike."""
    num = len(LINE_COLOURS)
    style = LINE_STYLES[(index + index // num) % len(LINE_STYLES)]
    return {"color": LINE_COLOURS[index % num], "linestyle": style}


def plot_estimates(axes: Axes, points: Sequence[tuple[float, Estimate]], **look: Any) -> None:
    """Mark estimates at their places, with their intervals; an unknown interval is drawn as none."""
    values = np.array([estimate.value for _, estimate in points])
    ends = np.array([[estimate.low, estimate.high] for _, estimate in points]).T
    spread = np.nan_to_num(np.abs(ends - values))
    axes.errorbar([x for x, _ in points], values, yerr=spread, markersize=4, **look)


def label(name: str) -> str:
    r"""A name as a figure can show it, whoever chose it.

    Matplotlib sets what stands between dollar signs as a formula, and leaves names that begin with an underscore out
    of legends; an SVG holds no control characters.

    Example:
        >>> label("a_b"), label("$"), label("a\x07"), len(label("_a"))
        ('a_b', '\\$', 'a\\x07', 3)
    """
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name).replace("$", r"\$")
    return "\N{WORD JOINER}" + shown if shown.startswith("_") else shown


def legend_above(figure: Figure, ncols: int = 2) -> None:
    """Put one legend above all panels, where it hides nothing."""
    figure.legend(loc="outside upper left", ncols=ncols, columnspacing=1.2, handlelength=2.4)
