"""A preference that follows the calendar instead of the policy: linear step decay (paper, Table 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coba_rl.allocation.saved import saved_number
from coba_rl.allocation.strategies.coba import BetaStrategy
from coba_rl.errors import OptionError
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class LinearDecay(BetaStrategy):
    """α = 10, 9, …, 1 in ten equal stages of training, β = κ − α (paper, Table 3)."""

    name: ClassVar[str] = "linear-decay"

    kappa: float = 11.0
    """κ = α + β."""

    NUM_STAGES: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step = 0
        self._num_allocations: int | None = None

    def validate(self) -> None:
        super().validate()
        least = self.NUM_STAGES + 1  # β stays at least 1
        require(self.kappa >= least, "kappa", self.kappa, f"at least {least}")

    def begin(self, num_allocations: int) -> None:
        self._num_allocations = num_allocations

    def shape(self) -> tuple[float, float]:
        of_all = self._num_allocations or self.NUM_STAGES
        stage = min(max(self._step - 1, 0) * self.NUM_STAGES // of_all, self.NUM_STAGES - 1)
        alpha = float(self.NUM_STAGES - stage)
        return alpha, self.kappa - alpha

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        self._count_step()
        return super().allocate(p_P, total, low, high)

    def allocate_tokens(
        self, p_P: np.ndarray, cost_P: np.ndarray, tokens: float, low: int, high: int
    ) -> np.ndarray:
        self._count_step()
        return super().allocate_tokens(p_P, cost_P, tokens, low, high)

    def _count_step(self) -> None:
        if self._num_allocations is None:
            raise OptionError(
                "linear-decay needs the number of allocations in the whole training: call allocator.begin(...) with it "
                "before the first."
            )
        self._step += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._step = int(saved_number(state, "step", low=0))
