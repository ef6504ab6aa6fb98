"""Contenders take turns in one process, and each round gives a ratio of CPU times to the reference.

What the machine does meanwhile falls on all of them alike.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

MEAN_BUDGET, LOW, HIGH = 16, 2, 128
"""Rollouts of a prompt wherever rollouts are shared out: on average, at least, at most."""

_SHORTEST = 2e-3  # seconds: faster calls are repeated until they take so long


Progress = Callable[[int, int], None]
"""Called with what is done of a piece of work, and with all of it."""


@dataclass(frozen=True)
class Row:
    """One contender at one size."""

    name: str
    prompts: int
    seconds: float
    """Median CPU time of a call."""
    ratio: float
    """Median over rounds of its time to the reference's."""
    low: float
    """10 % of the ratios are below."""
    high: float
    """10 % of the ratios are above."""


@dataclass
class Part:
    """One table of the results."""

    id: str
    title: str
    reading: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    sizes: tuple[int, ...] = (64, 512, 4096, 32_768, 1_000_000)
    """Prompts of a batch."""
    tables: tuple[int, ...] = (1_000, 1_000_000, 10_000_000)
    """Prompts with a history."""
    rounds: int = 15
    seconds: float = 6.0
    """After which no further round of a race begins."""


QUICK = Effort(sizes=(64, 512), tables=(1_000, 100_000), rounds=5, seconds=0.5)


def race(
    contenders: Mapping[str, Callable[[], object]], reference: str, prompts: int, effort: Effort
) -> list[Row]:
    """Time contenders in turn, in CPU time of this process: what it waits for does not count.

    Args:
        contenders: Name → call.
        reference: The one that ratios are to.
        prompts: Size, for the rows.
        effort: Rounds and seconds.

    Example:
        >>> rows = race({"a": lambda: sum(range(99)), "b": lambda: None}, "a", 1, QUICK)
        >>> rows[0].ratio, rows[1].ratio < 1.0
        (1.0, True)
    """
    repeats = {
        name: max(1, math.ceil(_SHORTEST / max(seconds_of(call), 1e-6))) for name, call in contenders.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + effort.seconds
    for _ in range(effort.rounds):
        for name, call in contenders.items():
            seconds[name].append(seconds_of(call, repeats[name]))
        if time.perf_counter() > end:
            break
    return [row_of(name, prompts, values, seconds[reference]) for name, values in seconds.items()]


def row_of(name: str, prompts: int, seconds: list[float], reference: list[float]) -> Row:
    """The row of a contender from its times and the reference's, round by round."""
    low, middle, high = np.quantile(np.array(seconds) / np.array(reference), [0.1, 0.5, 0.9]).tolist()
    return Row(name, prompts, float(np.median(seconds)), middle, low, high)


def seconds_of(call: Callable[[], object], repeats: int = 1) -> float:
    """CPU time of a call, averaged over some."""
    return timeit.timeit(call, timer=time.process_time, number=repeats) / repeats


def pass_rates(num_prompts: int) -> np.ndarray:
    """(P,) pass rates as of a hard data set: most near 0, some near 1."""
    return np.clip(np.random.default_rng(0).beta(0.5, 0.9, size=num_prompts), 1e-6, 1.0 - 1e-6)
