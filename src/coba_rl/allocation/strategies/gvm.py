"""GVM, gradient variance minimisation (arXiv 2505.02391)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.proportional import proportional
from coba_rl.allocation.strategies.base import Strategy, require


@dataclass(eq=False, kw_only=True)
class Gvm(Strategy):
    """n ∝ 1/√(p + a/p^(b−1)), within the bounds; a prompt that never passes gets the minimum."""

    name: ClassVar[str] = "gvm"

    a: float = 1e-3
    """Regularisation a ≥ 0: how fast the share of hopeless prompts falls."""
    b: float = 2.0
    """Regularisation exponent b ≥ 1."""

    def validate(self) -> None:
        super().validate()
        require(self.a >= 0, "a", self.a, "at least 0")
        require(self.b >= 1, "b", self.b, "at least 1")

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        live = p_P > 0.0
        log_p = np.log(p_P[live])
        log_a = math.log(self.a) if self.a > 0.0 else -math.inf
        log_weight = -0.5 * np.logaddexp(log_p, log_a - (self.b - 1.0) * log_p)
        weight_P = np.zeros(len(p_P))
        weight_P[live] = np.exp(log_weight - log_weight.max(initial=-math.inf))
        return proportional(weight_P, total, low, high)
