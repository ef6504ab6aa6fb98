"""GVM, gradient variance minimisation (arXiv 2505.02391)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.proportional import proportional
from coba_rl.allocation.strategies.base import Strategy
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class Gvm(Strategy):
    """n ∝ 1/√(p + damping/p^(damping_exponent − 1)), within the bounds; a prompt that never passes gets the minimum."""

    name: ClassVar[str] = "gvm"

    damping: float = 1e-3
    """Regularisation ≥ 0: how fast the share of hopeless prompts falls."""
    damping_exponent: float = 2.0
    """Exponent of that fall, ≥ 1."""

    def validate(self) -> None:
        super().validate()
        require(self.damping >= 0, "damping", self.damping, "at least 0")
        exponent = self.damping_exponent
        require(exponent >= 1, "damping_exponent", exponent, "at least 1")

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        live = p_P > 0.0
        log_p = np.log(p_P[live])
        log_damping = math.log(self.damping) if self.damping > 0.0 else -math.inf
        log_weight = -0.5 * np.logaddexp(log_p, log_damping - (self.damping_exponent - 1.0) * log_p)
        weight_P = np.zeros(len(p_P))
        weight_P[live] = np.exp(log_weight - log_weight.max(initial=-math.inf))
        return proportional(weight_P, total, low, high)
