"""Fixed preferences: the static ablations of the paper's Table 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coba_rl.allocation.strategies.coba import BetaStrategy
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class _Static(BetaStrategy):
    alpha: float = 1.0
    """α of the density, ≥ 1."""
    beta: float = 1.0
    """β of the density, ≥ 1."""

    def validate(self) -> None:
        super().validate()
        require(self.alpha >= 1, "alpha", self.alpha, "at least 1")
        require(self.beta >= 1, "beta", self.beta, "at least 1")

    def shape(self) -> tuple[float, float]:
        return self.alpha, self.beta


@dataclass(eq=False, kw_only=True)
class StaticExploit(_Static):
    """Always prefers prompts that nearly pass: Beta(10.5, 1.5) (paper, Table 3)."""

    name: ClassVar[str] = "static-exploit"

    alpha: float = 10.5
    beta: float = 1.5


@dataclass(eq=False, kw_only=True)
class StaticExplore(_Static):
    """Always prefers prompts that rarely pass: Beta(1.5, 10.5) (paper, Table 3)."""

    name: ClassVar[str] = "static-explore"

    alpha: float = 1.5
    beta: float = 10.5
