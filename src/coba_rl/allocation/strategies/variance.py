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
