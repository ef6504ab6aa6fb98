"""Condensing records: windows of steps, pass-rate bins, difficulty transitions.

Axes: `_S` steps, `_A` allocations, `_W` windows of consecutive steps, `_B` pass-rate bins (`unknown` first).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coba_rl.evaluate import DIFFICULTY_CLASSES, Transitions, difficulty_transitions
from coba_rl.records import PassRateBin
from coba_rl.report.page import Table
from coba_rl.report.records import Allocations, RunRecords

BIN_EDGES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Edges of the pass-rate bins in which rollouts are counted."""

ROLLOUTS_COLUMNS = ["pass rate", "prompts", "rollouts", "mean budget", "success"]

BIN_NAMES = ("unknown", *(f"{low:g}–{high:g}" for low, high in pairwise(BIN_EDGES)))


@dataclass(frozen=True, eq=False)
class Windows:
    """Consecutive steps cut into pieces of nearly equal length."""

    edge_W: np.ndarray
    """(W + 1,) first step of each window, and the step after the last."""

    @classmethod
    def over(cls, first: int, last: int, most: int = 40) -> Windows:
        """At most `most` windows over the steps from `first` to `last`, both included.

        Example:
            >>> Windows.over(1, 6, most=3).edge_W.tolist()
            [1, 3, 5, 7]
        """
        num = min(most, last - first + 1)
        return cls(np.round(np.linspace(first, last + 1, num + 1)).astype(np.int64))

    def __len__(self) -> int:
        return len(self.edge_W) - 1

    def place(self, steps: np.ndarray) -> np.ndarray:
        """Index of the window of each step."""
        return np.clip(np.searchsorted(self.edge_W, steps, side="right") - 1, 0, len(self) - 1)

    def mean(self, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        """(W,) mean of the values in each window; NaN where there is none.

        Example:
            >>> Windows.over(1, 4, most=2).mean(np.array([1, 2, 3]), np.array([0.0, 1.0, np.nan])).tolist()
            [0.5, nan]
        """
        known = ~np.isnan(values)
        place = self.place(steps[known])
        counts = np.bincount(place, minlength=len(self))
        sums = np.bincount(place, values[known], minlength=len(self))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def moving_average(values_S: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` steps, shorter at both ends; NaN entries are left out.

    Args:
        values_S: (S,) values.
        width: Steps in the window, ≥ 1; an even width is widened by one.

    Returns:
        (S,) means; NaN where the whole window is NaN.

    Example:
        >>> moving_average(np.array([0.0, 1.0, np.nan, 3.0]), 3).tolist()
        [0.5, 0.5, 2.0, 3.0]
    """
    half = width // 2
    known = ~np.isnan(values_S)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values_S, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    position = np.arange(len(values_S))
    low, high = np.maximum(position - half, 0), np.minimum(position + half + 1, len(values_S))
    number = counts[high] - counts[low]
    return np.where(number > 0, (sums[high] - sums[low]) / np.maximum(number, 1), np.nan)


def bin_place(pass_rates: np.ndarray) -> np.ndarray:
    """Index into `BIN_NAMES`: 0 for an unknown pass rate, else its bin, which includes its lower edge.

    Example:
        >>> [BIN_NAMES[i] for i in bin_place(np.array([np.nan, 0.0, 0.05, 1.0]))]
        ['unknown', '0–0.05', '0.05–0.2', '0.95–1']
    """
    place = np.searchsorted(BIN_EDGES, pass_rates, side="right")
    return np.where(np.isnan(pass_rates), 0, np.clip(place, 1, len(BIN_EDGES) - 1))


@dataclass(frozen=True, eq=False)
class BudgetByBin:
    """Rollouts and prompts by pass-rate bin and window; shape (B, W)."""

    windows: Windows
    rollouts_BW: np.ndarray
    prompts_BW: np.ndarray

    @property
    def shares_BW(self) -> np.ndarray:
        """Share of a window's rollouts that each bin got; columns sum to 1, or to 0 without records."""
        return self.rollouts_BW / np.maximum(self.rollouts_BW.sum(axis=0), 1.0)

    @property
    def mean_BW(self) -> np.ndarray:
        """Mean budget of a prompt; NaN where a bin had no prompts."""
        known = self.prompts_BW > 0
        return np.where(known, self.rollouts_BW / np.maximum(self.prompts_BW, 1), np.nan)


def budget_by_bin(allocations: Allocations, windows: Windows) -> BudgetByBin:
    """Count rollouts and prompts in each pass-rate bin and window."""
    place_A, bins = bin_place(allocations.pass_rate_A), (np.arange(len(BIN_NAMES) + 1), windows.edge_W)
    rollouts_BW, _, _ = np.histogram2d(place_A, allocations.step_A, bins, weights=allocations.budget_A)
    prompts_BW, _, _ = np.histogram2d(place_A, allocations.step_A, bins)
    return BudgetByBin(windows, rollouts_BW, prompts_BW)


def rollouts_by_bin(allocations: Allocations) -> list[PassRateBin]:
    """Share of prompts and rollouts, mean budget and success, by the pass rate believed when allocating.

    Returns:
        One row a bin, `unknown` first; bins without prompts are left out.
    """
    place = bin_place(allocations.pass_rate_A)
    rows = []
    for index, name in enumerate(BIN_NAMES):
        here = place == index
        if not here.any():
            continue
        judged = allocations.attempts_A[here].sum()
        budget = allocations.budget_A[here].sum()
        rows.append(
            PassRateBin(
                pass_rate=name,
                share_of_prompts=float(here.mean()),
                share_of_rollouts=float(budget / max(allocations.budget_A.sum(), 1.0)),
                mean_budget=float(budget / here.sum()),
                success=float(allocations.successes_A[here].sum() / judged) if judged else None,
            )
        )
    return rows


def rollouts_cells(row: PassRateBin) -> list[str]:
    """What tables show of a bin, in the order of `ROLLOUTS_COLUMNS`."""
    return [
        row.pass_rate,
        f"{row.share_of_prompts:.1%}",
        f"{row.share_of_rollouts:.1%}",
        f"{row.mean_budget:.1f}",
        "–" if row.success is None else f"{row.success:.3f}",
    ]


def generated_tokens(run: RunRecords) -> int | None:
    """Tokens of all completions of a run; see `tokens_so_far`."""
    tokens = tokens_so_far(run)
    return None if tokens is None else round(float(tokens[-1]))


def tokens_so_far(run: RunRecords) -> np.ndarray | None:
    """Tokens of a run's completions up to each step; None unless every step with allocations logged a mean length.

    Returns:
        (1 + last step,) generated up to and including each step, from step 0.
    """
    told, lengths = run.allocations, dict(zip(run.step_S.tolist(), run.mean_length_S.tolist(), strict=True))
    length_A = np.array([lengths.get(step, np.nan) for step in told.step_A.tolist()])
    if not len(length_A) or not np.isfinite(length_A).all():
        return None
    return np.cumsum(np.bincount(told.step_A, told.budget_A * length_A))


def visit_transitions(allocations: Allocations) -> Transitions | None:
    """Difficulty class of each prompt at its first visit against its last, by the successes of those visits.

    Returns:
        None when no prompt was tried at two visits or more.
    """
    rates_by_prompt: dict[str | int, list[float]] = {}
    for prompt, successes, attempts in zip(
        allocations.prompt_A, allocations.successes_A.tolist(), allocations.attempts_A.tolist(), strict=True
    ):
        if attempts > 0:
            rates_by_prompt.setdefault(prompt, []).append(min(max(successes / attempts, 0.0), 1.0))
    revisited = [rates for rates in rates_by_prompt.values() if len(rates) > 1]
    if not revisited:
        return None
    return difficulty_transitions([rates[0] for rates in revisited], [rates[-1] for rates in revisited])


def transition_table(
    caption: str, corner: str, transitions: Transitions, cell: Callable[[int, float], str]
) -> Table:
    """A row for each difficulty class before, in which darker cells hold more of the row.

    Args:
        caption: What is counted.
        corner: Heading of the classes before.
        transitions: The counts.
        cell: What a count, and its share of the row, are shown as.
    """
    shares = np.nan_to_num(transitions.shares).tolist()
    names = [name.replace(" ", "\N{NO-BREAK SPACE}") for name in DIFFICULTY_CLASSES]
    rows = [
        [name, *map(cell, *row)]
        for name, *row in zip(names, transitions.counts.tolist(), shares, strict=True)
    ]
    return Table(caption, [corner, *names], rows, shades=shares)


def value_stages(step_A: np.ndarray, budget_A: np.ndarray) -> list[int]:
    """Start, middle and end of uneven allocation: the first step with uneven budgets, the half-way one, the last.

    While nothing is known of any prompt, budgets are even whatever the strategy prefers; these steps would
    show nothing. A run without uneven budgets starts at its first step.

    Example:
        >>> value_stages(np.array([1, 1, 2, 2, 3, 3, 4, 4, 5, 5]), np.array([4, 4, 4, 4, 2, 8, 2, 8, 2, 8]))
        [3, 4, 5]
    """
    steps, first_S, place_A = np.unique(step_A, return_index=True, return_inverse=True)
    uneven_A = budget_A != budget_A[first_S][place_A]
    start = int(place_A[uneven_A].min()) if uneven_A.any() else 0
    end = len(steps) - 1
    return steps[sorted({start, (start + end) // 2, end})].tolist()
