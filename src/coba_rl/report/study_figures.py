"""The figures of a study's report. Axes: `_X` points along training, `_N` seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coba_rl.evaluate import Estimate
from coba_rl.report import drawing
from coba_rl.report.drawing import draw, format_axes, label, legend_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Band:
    """One arm's curve over seeds."""

    label: str
    x_X: np.ndarray
    values_NX: np.ndarray
    """One row a seed; NaN where a seed has no value."""


def bands_figure(name: str, title: str, bands: Sequence[Band], xlabel: str, ylabel: str) -> str:
    """Mean over seeds of each arm, in a band from the lowest seed to the highest.

    Example:
        >>> svg = bands_figure("b", "Title", [Band("arm", np.arange(3), np.eye(3))], "step", "accuracy")
        >>> 'aria-label="Title"' in svg
        True
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for i, band in enumerate(bands):
            colour, line = _look(i)
            seen = ~np.isnan(band.values_NX).all(axis=0)
            x, values = band.x_X[seen], band.values_NX[:, seen]
            axes.plot(
                x, np.nanmean(values, axis=0), line, color=colour, label=label(band.label), linewidth=1.4
            )
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        format_axes(axes, xlabel, ylabel)
        legend_above(figure)

    return draw(name, title, paint, height=2.9 + 0.12 * len(bands))


def cost_figure(name: str, title: str, arms: dict[str, list[tuple[int, Estimate]]]) -> str:
    """Accuracy at the end against the rollouts of the whole run, an arm a line.

    Args:
        name, title: As `drawing.draw`.
        arms: Arm → (rollouts, accuracy with its interval over seeds) of each budget.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (arm, points) in enumerate(arms.items()):
            colour, line = _look(i)
            points = sorted(points, key=lambda point: point[0])
            value = np.array([estimate.value for _, estimate in points])
            ends = np.array([[estimate.low, estimate.high] for _, estimate in points]).T
            axes.errorbar(
                [rollouts for rollouts, _ in points], value, yerr=np.nan_to_num(np.abs(ends - value)), fmt=line,
                marker=drawing.MARKERS[i % len(drawing.MARKERS)], markersize=4, capsize=3, color=colour, label=label(arm),
            )  # fmt: skip
        format_axes(axes, "rollouts of the whole run", "final accuracy")
        legend_above(figure)

    return draw(name, title, paint, height=3.0)


def _look(index: int) -> tuple[str, str]:
    """Colour and line of an arm: colours first, then other lines, so that no two of 24 arms look alike."""
    colours, lines = drawing.LINE_COLOURS, drawing.LINE_STYLES
    return colours[index % len(colours)], lines[(index + index // len(colours)) % len(lines)]
