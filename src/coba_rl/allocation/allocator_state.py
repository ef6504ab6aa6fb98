"""What an allocator remembers, and how it is saved and restored."""

from __future__ import annotations

from typing import Any

from coba_rl.allocation.lengths import LengthModel
from coba_rl.allocation.rounds import FirstRound
from coba_rl.allocation.saved import check_fits, saved_number
from coba_rl.allocation.strategies import Strategy
from coba_rl.allocation.token_limit import TokenLimit
from coba_rl.errors import StateError

STATE_VERSION = 2
_OPTIONS = ("bounds", "success_threshold", "mode", "pilot", "budget_unit")


class Remembers:
    """The memory of a `BudgetAllocator`, which sets all of it when it is made."""

    strategy: Strategy
    bounds: tuple[int, int]
    success_threshold: float | None
    mode: str
    pilot: int
    budget_unit: str
    _limit: TokenLimit
    _first_round: FirstRound | None
    _step: int
    _allocation_metrics: dict[str, float]
    _outcome_metrics: dict[str, float]

    def state_dict(self, *, arrays: bool = False) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened; JSON-able.

        Args:
            arrays: Leave what is kept of each prompt in NumPy arrays, for writers of binary files. They are
                views, valid until the next `observe`.
        """
        prompts = self.strategy.prompts
        return {
            **self._progress(),
            "prompts": prompts.arrays() if arrays else prompts.state_dict(),
            "lengths": self._limit.lengths.state_dict(arrays=arrays),
        }

    def _progress(self) -> dict[str, Any]:
        """The state but for the prompts: small, whatever the data set."""
        return {
            "version": STATE_VERSION,
            "strategy": self.strategy.name,
            "options": self.strategy.options(),
            "bounds": list(self.bounds),
            "success_threshold": self.success_threshold,
            "mode": self.mode,
            "pilot": self.pilot,
            "budget_unit": self.budget_unit,
            "step": self._step,
            "strategy_state": self.strategy.state_dict(),
            "allocation_metrics": dict(self._allocation_metrics),
            "outcome_metrics": dict(self._outcome_metrics),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the allocator then continues bit for bit.

        Changed options, bounds, mode, pilot and budget unit are used from now on, with a warning; another strategy is refused. When
        this raises, the allocator is as it was. Arrays in the state become the allocator's own.

        Raises:
            StateError: A damaged state, one of a newer version, or one of another strategy.
        """
        before = self.strategy.state_dict()
        try:
            check_fits(state, self._progress(), _OPTIONS)
            prompts = self.strategy.prompts.restored(state["prompts"])
            lengths = LengthModel.restored(state["lengths"])
            self._restore(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.strategy.load_state_dict(before)
            if isinstance(error, StateError):
                raise
            raise StateError(
                f"The saved allocator state is damaged ({type(error).__name__}: {error}). Use another checkpoint."
            ) from error
        self.strategy.prompts, self._limit.lengths, self._first_round = prompts, lengths, None

    def _restore(self, progress: dict[str, Any]) -> None:
        self.strategy.load_state_dict(progress["strategy_state"])
        step = int(saved_number(progress, "step", low=0))
        allocation_metrics, outcome_metrics = (
            {name: saved_number(progress[kind], name) for name in progress[kind]}
            for kind in ("allocation_metrics", "outcome_metrics")
        )
        self._step, self._allocation_metrics, self._outcome_metrics = (
            step,
            allocation_metrics,
            outcome_metrics,
        )
