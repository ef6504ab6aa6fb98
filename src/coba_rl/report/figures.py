"""The figures of the reports: data in, SVG out.

Every function takes plain arrays and a `name` that is unique on the page, and knows nothing of run folders,
so that reports of one run and of many share them. Axes: `_S` steps, `_W` windows of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coba_rl.evaluate import Estimate
from coba_rl.report import drawing
from coba_rl.report.drawing import draw, format_axes, legend_above
from coba_rl.report.series import BIN_NAMES, BudgetByBin, Windows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Curve:
    """Success in training, and held-out accuracy at points along the way."""

    label: str
    x: np.ndarray
    """Where each value was measured: a step, or rollouts spent."""
    values: np.ndarray
    """Success per prompt in [0, 1]; NaN where nothing was judged."""
    smooth: np.ndarray
    """Moving average of `values`."""
    heldout: Sequence[tuple[float, Estimate]] = ()
    """(x, accuracy) of the held-out measurements."""


@dataclass(frozen=True, eq=False)
class ValueStage:
    """One step at which the preference over pass rates is shown."""

    step: int
    pass_rates: np.ndarray
    """Pass rates believed at that step."""
    values: np.ndarray
    """What the prompts were thought to be worth."""
    budgets: np.ndarray
    """Rollouts given to the same prompts."""


def capability_figure(
    name: str,
    step_S: np.ndarray,
    failure_S: np.ndarray,
    transformed_S: np.ndarray | None,
    alpha_S: np.ndarray,
) -> str:
    """F̄ and, where the strategy has one, F̃ above α, over time.

    Example:
        >>> steps = np.arange(3)
        >>> svg = capability_figure("capability", steps, steps / 4, None, 1.0 + steps)
        >>> "preferred" in svg
        True
    """

    def paint(figure: Figure) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True)
        marker = "o" if len(step_S) == 1 else ""
        top.plot(step_S, failure_S, color=drawing.BLUE, marker=marker, label="F̄, failure rate (smoothed)")
        if transformed_S is not None:
            top.plot(
                step_S, transformed_S, "--", color=drawing.VERMILION, marker=marker, label="F̃, transformed"
            )
        bottom.plot(step_S, alpha_S, "-.", color=drawing.GREEN, marker=marker, label="α, preferred shape")
        format_axes(top, ylabel="failure rate", share=True)
        format_axes(bottom, "step", "α")
        bottom.set_ylim(bottom=0.0)
        legend_above(figure)

    return draw(name, "Failure rate, transformed failure rate and α at each step", paint, height=3.6)


def budget_shares_figure(name: str, budgets: BudgetByBin) -> str:
    """Share of the rollouts that each pass-rate bin got, stacked over time."""
    present = [i for i in range(len(BIN_NAMES)) if budgets.rollouts_BW[i].any()]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        _stack(axes, budgets.windows, [(BIN_NAMES[i], budgets.shares_BW[i], *_bin_look(i)) for i in present])
        format_axes(axes, "step", "share of rollouts", share=True)
        legend_above(figure, ncols=4)

    return draw(name, "Share of rollouts by believed pass rate, over the steps", paint, height=3.2)


def mean_budget_figure(name: str, budgets: BudgetByBin) -> str:
    """Mean budget of a prompt by pass-rate bin (rows) over time (columns), in colours a factor of 2 apart."""
    mean_BW = np.ma.masked_invalid(budgets.mean_BW)
    present = [i for i in range(len(BIN_NAMES)) if mean_BW[i].count()]

    def paint(figure: Figure) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import BoundaryNorm, ListedColormap

        lowest = math.floor(math.log2(max(mean_BW.min(), 1.0)))
        highest = max(math.ceil(math.log2(max(mean_BW.max(), 1.0))), lowest + 1)
        bounds = 2.0 ** np.arange(lowest, highest + 1)
        colours = ListedColormap(colormaps["viridis_r"](np.linspace(0.0, 1.0, len(bounds) - 1)))
        axes = figure.subplots()
        edges, rows = budgets.windows.edge_W - 0.5, np.arange(len(present) + 1)
        norm = BoundaryNorm(bounds, colours.N)
        mesh = axes.pcolormesh(edges, rows, mean_BW[present], cmap=colours, norm=norm)
        mesh.set(edgecolor="face", linewidth=0.3)  # or renderers leave white seams between cells
        axes.set_yticks(rows[:-1] + 0.5, [BIN_NAMES[i] for i in present])
        format_axes(axes, "step", "believed pass rate")
        axes.grid(visible=False)
        bar = figure.colorbar(mesh, ax=axes, label="rollouts of a prompt", ticks=bounds, pad=0.02)
        bar.ax.set_yticklabels([f"{bound:g}" for bound in bounds])

    return draw(name, "Mean budget of a prompt by believed pass rate, over the steps", paint, height=2.9)


def value_figure(name: str, stages: Sequence[ValueStage]) -> str:
    """Value of a prompt at the mean budget above the budgets given, by pass rate and stage."""

    def paint(figure: Figure) -> None:
        from matplotlib.ticker import StrMethodFormatter

        top, bottom = figure.subplots(2, 1, sharex=True)
        looks = zip(drawing.LINE_COLOURS, drawing.LINE_STYLES, drawing.MARKERS, strict=False)
        for stage, (colour, line, marker) in zip(stages, looks, strict=False):
            shown = _thin(np.argsort(stage.pass_rates), most=250)
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "alpha": 0.75}
            rates = stage.pass_rates[shown]
            top.plot(rates, stage.values[shown], line, label=f"step {stage.step:,}", **look)
            bottom.plot(rates, stage.budgets[shown], linestyle="none", **look)
        top.set(ylabel="value", xlim=(-0.02, 1.02))
        top.set_ylim(bottom=0.0)
        bottom.set(xlabel="believed pass rate p", ylabel="rollouts given")
        given = np.concatenate([stage.budgets for stage in stages])
        # Limits first: a log scale cannot find any when no pass rate is known and nothing is drawn.
        bottom.set_ylim(max(given.min(), 1.0) / 1.3, max(given.max(), 1.0) * 1.3)
        bottom.set_yscale("log", base=2)
        bottom.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        bottom.yaxis.set_minor_formatter(StrMethodFormatter(""))
        legend_above(figure, ncols=1)

    return draw(name, "Value and budget of a prompt by its pass rate, at three stages", paint, height=4.4)


def curve_figure(name: str, title: str, curve: Curve, xlabel: str) -> str:
    """Success in training as dots and their moving average, with held-out accuracy and its intervals.

    Example:
        >>> x = np.arange(3.0)
        >>> "&lt;b&gt;" in curve_figure("c", "Title", Curve("<b>", x, x / 4, x / 4), "step")
        True
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        shown = _thin(np.arange(len(curve.x)))
        axes.plot(curve.x[shown], curve.values[shown], ".", color=drawing.BLUE, markersize=3, alpha=0.45)
        axes.plot(curve.x, curve.smooth, color=drawing.BLUE, label=curve.label)
        if curve.heldout:
            _mark_heldout(axes, curve.heldout)
        format_axes(axes, xlabel, "success", share=True)
        legend_above(figure)

    return draw(name, title, paint, height=2.9)


def dead_groups_figure(name: str, windows: Windows, wrong_W: np.ndarray, right_W: np.ndarray) -> str:
    """Shares of the groups that were all wrong and all right, stacked over time."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        layers = [
            ("all wrong", np.nan_to_num(wrong_W), drawing.VERMILION, ""),
            ("all right", np.nan_to_num(right_W), drawing.SKY, "////"),
        ]
        _stack(axes, windows, layers)
        format_axes(axes, "step", "share of groups", share=True)
        legend_above(figure)

    return draw(name, "Share of groups that were all wrong or all right, over the steps", paint)


def _thin(positions: np.ndarray, most: int = 500) -> np.ndarray:
    """At most `most` of the positions, evenly taken: each mark on a page costs about 100 bytes."""
    return positions[np.linspace(0, len(positions) - 1, min(len(positions), most)).astype(int)]


def _stack(axes: Axes, windows: Windows, layers: Sequence[tuple[str, np.ndarray, str, str]]) -> None:
    """Stack layers of (label, one value a window, colour, hatch)."""
    base = np.zeros(len(windows))
    edges = windows.edge_W - 0.5
    for label, values, colour, hatch in layers:
        axes.stairs(
            base + values, edges, baseline=base, fill=True, label=label, facecolor=colour, hatch=hatch,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        base = base + values
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(visible=False)


def _bin_look(index: int) -> tuple[str, str]:
    """Colour and hatch of a pass-rate bin: grey for unknown, then dark to light from hard to easy."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if index == 0:
        return drawing.GREY, "///"
    return to_hex(colormaps["viridis"]((index - 1) / (len(BIN_NAMES) - 2))), ""


def _mark_heldout(axes: Axes, heldout: Sequence[tuple[float, Estimate]]) -> None:
    line = "-" if len(heldout) > 2 else ""  # between two points, a line would say more than was measured
    drawing.plot_estimates(
        axes, heldout, fmt="s" + line, color=drawing.VERMILION, capsize=4, linewidth=1, clip_on=False, zorder=5,
        label="held-out, 95 % interval",
    )  # fmt: skip
