"""Budgets from the variance of the reward alone (VIP-like, arXiv 2602.01601)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.strategies.base import GainStrategy
from coba_rl.allocation.value import Gains, VarianceGains


@dataclass(eq=False, kw_only=True)
class Variance(GainStrategy):
    """V = −p(1−p)/B: makes the summed variance of the groups' mean rewards as small as it can be."""

    name: ClassVar[str] = "variance"

    def gains(self, p_P: np.ndarray, mean_budget: float) -> Gains:
        return VarianceGains(p_P)

    def value(self, p_P: np.ndarray, mean_budget: float, batch_P: np.ndarray | None = None) -> np.ndarray:
        return p_P * (1.0 - p_P) * (1.0 - 1.0 / mean_budget)  # over a single rollout
