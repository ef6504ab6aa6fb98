"""The figures of a study's report. Axes: `_X` points along training, `_N` seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coba_rl.evaluate import Estimate
from coba_rl.report import drawing
from coba_rl.report.drawing import draw, format_axes, label, legend_above, line_look, plot_estimates

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Band:
    """One arm's curve over seeds."""

    label: str
    x_X: np.ndarray
    values_NX: np.ndarray
    """One row a seed; NaN where a seed has no value."""


def bands_figure(name: str, title: str, bands: Sequence[Band | None], xlabel: str, ylabel: str) -> str:
    """Mean over seeds of each arm, in a band from the lowest seed to the highest.

    An arm looks the same in figures of as many; None stands for one that is missing.

    Example:
        >>> svg = bands_figure("b", "Title", [Band("arm", np.arange(3), np.eye(3))], "step", "accuracy")
        >>> 'aria-label="Title"' in svg
        True
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for i, band in enumerate(bands):
            if band is None:
                continue
            seen = ~np.isnan(band.values_NX).all(axis=0)
            x, values = band.x_X[seen], band.values_NX[:, seen]
            look = line_look(i)
            axes.plot(x, np.nanmean(values, axis=0), label=label(band.label), linewidth=1.4, **look)
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        format_axes(axes, xlabel, ylabel)
        legend_above(figure)

    return draw(name, title, paint, height=2.9 + 0.12 * len(bands))


def cost_figure(name: str, title: str, arms: dict[str, list[tuple[int, Estimate]]]) -> str:
    """Accuracy at the end against the tokens of the whole run, an arm a line.

    Args:
        name, title: As `drawing.draw`.
        arms: Arm → (tokens, accuracy with its interval over seeds) of each budget.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (arm, points) in enumerate(arms.items()):
            points = sorted(points, key=lambda point: point[0])
            marker = drawing.MARKERS[i % len(drawing.MARKERS)]
            plot_estimates(axes, points, marker=marker, capsize=3, label=label(arm), **line_look(i))
        format_axes(axes, "tokens of the whole run", "final accuracy")
        legend_above(figure)

    return draw(name, title, paint, height=3.0)
