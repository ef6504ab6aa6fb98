"""What a training run shows while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from coba_rl.runs.progress import Progress

_LINES = 10
"""Written of a piece of work where no bar can be drawn."""


class PlainLines:
    """Progress in lines that any terminal, log or pipe can hold, about ten for each count from nothing to its total.

    Args:
        what: Is counted.
    """

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, 0

    def __call__(self, done: int, total: int) -> None:
        part = done * _LINES // max(total, 1)
        if part > self._shown:
            print(f"{self._what} {done:,}/{total:,}", file=sys.stderr, flush=True)
        self._shown = part % _LINES  # what comes after the total is a new count


@contextmanager
def counting(what: str) -> Generator[Callable[[int, int], None]]:
    """A bar on standard error for work that reports `(done, total)`, gone when the work is; plain lines without a bar.

    Example:
        >>> with counting("completions") as progress:
        ...     progress(1, 2)
    """
    console = Console(stderr=True)
    if not console.is_interactive:
        yield PlainLines(what)
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


_SHOWN = {
    "success": "coba/success_per_prompt",
    "α": "coba/alpha",
    "dead groups": "coba/dead_groups",
}


class TrainingProgress(Progress):
    """A live bar where the terminal can draw one, about ten plain lines anywhere else. Written to standard error."""

    def begin(self, total: int, done: int, rollouts_per_step: int) -> None:
        self._total, self._first, self._rollouts_per_step = total, done, rollouts_per_step
        self._heldout, self._start = "", time.monotonic()
        self._heldout_lines = PlainLines("held-out completions")
        console = Console(stderr=True)
        self._live = console.is_interactive
        self._bar = Bar(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("starting", total=total, completed=done)
        self._bar.start()

    def end(self) -> None:
        self._bar.stop()

    def measuring(self, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"held-out completions {done:,}/{total:,}")
        if not self._live:
            self._heldout_lines(done, total)

    def measured(self, accuracy: float | None) -> None:
        self._heldout = "" if accuracy is None else f"  held-out {accuracy:.3g}"

    def update(self, step: int, metrics: dict[str, Any]) -> None:
        text = "  ".join(
            f"{name} {metrics[key]:.3g}" for name, key in _SHOWN.items() if metrics.get(key) is not None
        )
        text += f"{self._heldout}  rollouts {step * self._rollouts_per_step:,}"
        self._bar.update(self._task, completed=step, description=text)
        is_due = step == self._total or step % max(1, self._total // _LINES) == 0
        if not self._live and is_due:
            rate = (time.monotonic() - self._start) / max(step - self._first, 1)
            left = rate * (self._total - step)
            print(f"step {step}/{self._total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(f"coba-rl: {text}", file=sys.stderr, flush=True)
