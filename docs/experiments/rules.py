"""Rules and estimators that were tried and not kept: `PYTHONPATH=docs/experiments coba-rl study FILE.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.allocation.estimators.ability import AbilityEstimator
from coba_rl.allocation.proportional import proportional
from coba_rl.allocation.strategies.base import Strategy


@dataclass(eq=False, kw_only=True)
class Proportional(Strategy):
    """B ∝ (1 − p)/√(p + 0.02): hard prompts first, hopeless ones included."""

    name: ClassVar[str] = "proportional"

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return proportional((1.0 - p_P) / np.sqrt(p_P + 0.02), total, low, high)


class AbilityAlone(AbilityEstimator):
    """One ability that moves all logits alike, never together or apart, and no trend."""

    MOVE_VARIANCE = (0.01, 1e-12)
    TREND_WEIGHT = 0.0


class AbilityWithoutHopeless(AbilityEstimator):
    """Prompts that were never solved are hard, none is hopeless."""

    def _hopeless(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows))
