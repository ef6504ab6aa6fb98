"""What a run tells of itself while it works."""

from __future__ import annotations

from typing import Any


class Progress:
    """Hears of a run as it goes on; this one keeps it to itself. Subclass it to show what it hears.

    Only the main process tells. `begin` comes before the first step, `end` after the last one or a failure.

    Example:
        >>> class Printing(Progress):
        ...     def update(self, step, metrics):
        ...         print(f"step {step}: success {metrics['coba/success_per_prompt']}")
        >>> Printing().update(1, {"coba/success_per_prompt": 0.25})
        step 1: success 0.25
    """

    def begin(self, total: int, done: int, rollouts_per_step: int) -> None:
        """Training starts.

        Args:
            total: Steps of the run.
            done: Steps already behind it.
            rollouts_per_step: Rollouts of a step.
        """

    def update(self, step: int, metrics: dict[str, Any]) -> None:
        """A step is finished, with what was logged of it."""

    def measuring(self, done: int, total: int) -> None:
        """A held-out measurement is under way, in completions."""

    def measured(self, accuracy: float | None) -> None:
        """Held-out accuracy was measured; None where nothing could be judged."""

    def end(self) -> None:
        """Training is over."""

    def note(self, text: str) -> None:
        """Something worth a line: where the report is, or why there is none."""
