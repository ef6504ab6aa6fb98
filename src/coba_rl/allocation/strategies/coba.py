"""CoBA-RL (arXiv 2602.03048) as the paper prints it, as we recommend it, and with its schedule reversed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coba_rl.allocation.capability import beta_shape, transform
from coba_rl.allocation.estimators import PassRateEstimator
from coba_rl.allocation.saved import saved_number
from coba_rl.allocation.strategies.base import GainStrategy
from coba_rl.allocation.value import Gains, coba_gains, coba_value, saturation
from coba_rl.option_types import require


@dataclass(eq=False, kw_only=True)
class BetaStrategy(GainStrategy):
    """Budgets from V(B, p) = (1 − e^{−(B/τ)·p(1−p)}) · BetaPDF(p; α, β) (Eq. 9); subclasses choose (α, β).

    With `tau` unset, τ = 3 + 9·clip(Var(p)/0.1667, 0, 1), where Var is the population variance over the batch
    of p clipped to [0.01, 0.99]: the paper prints no τ, this is the rule of its released allocator.
    """

    tau: float | None = None
    """Saturation τ in rollouts (Eq. 5); unset: from the spread of the batch's pass rates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tau_used = self.tau if self.tau is not None else 3.0

    def validate(self) -> None:
        super().validate()
        require(self.tau is None or self.tau > 0, "tau", self.tau, "a positive number of rollouts")

    @abstractmethod
    def shape(self) -> tuple[float, float]:
        """(α, β) of the coming allocation, both ≥ 1."""

    def choose_tau(self, p_P: np.ndarray, mean_budget: float) -> float:
        """τ of the coming allocation, in rollouts."""
        return variance_tau(p_P) if self.tau is None else self.tau

    def gains(self, p_P: np.ndarray, mean_budget: float) -> Gains:
        self._tau_used = self.choose_tau(p_P, mean_budget)
        return coba_gains(p_P, *self.shape(), self._tau_used)

    def value(
        self, p_P: np.ndarray, mean_budget: float, batch_P: np.ndarray | None = None
    ) -> np.ndarray | None:
        batch_P = p_P if batch_P is None else batch_P
        tau = self.choose_tau(batch_P[~np.isnan(batch_P)], mean_budget)
        return coba_value(mean_budget, p_P, *self.shape(), tau)  # Eq. 9

    def contrast(self, p_P: np.ndarray, mean_budget: float) -> np.ndarray:
        return saturation(mean_budget, p_P, self.choose_tau(p_P, mean_budget))  # Eq. 5

    def metrics(self) -> dict[str, float]:
        alpha, beta = self.shape()
        return {**super().metrics(), "alpha": alpha, "beta": beta, "tau": self._tau_used}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tau": self._tau_used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._tau_used = saved_number(state, "tau", low=np.nextafter(0.0, 1.0))


def variance_tau(p_P: np.ndarray) -> float:
    """τ = 3 + 9·clip(Var(p)/0.1667, 0, 1), p clipped to [0.01, 0.99] (released CoBA-RL allocator); 3 for no prompt.

    Example:
        >>> variance_tau(np.array([0.5, 0.5]))
        3.0
    """
    if not len(p_P):
        return 3.0
    return 3.0 + 9.0 * min(float(np.var(np.clip(p_P, 0.01, 0.99))) / 0.1667, 1.0)


@dataclass(eq=False, kw_only=True)
class CobaPaper(BetaStrategy):
    """CoBA-RL to the letter: equations 3–9 and Algorithm 1.

    The paper gives κ = 11, γ = 10 and a transform that acts below 0.5. It does not print α_min, α_max, λ and τ; they are
    those of its released allocator (1, κ − 1, κ − 2 and a rule from the variance of p). Pass rates are those
    of the last visit. Left open by the paper: prompts never seen get the even share, and rollouts that are
    worth nothing to anyone are spread evenly over the prompts with p in {0, 1}.
    """

    name: ClassVar[str] = "coba-paper"

    window: int = 3
    kappa: float = 11.0
    """Concentration κ = α + β of the preferred pass rates."""
    gamma: float = 10.0
    """Steepness γ of the transform at low failure rates (Eq. 6)."""
    transform_below: float = 0.5
    """Failure rate below which the transform acts (Eq. 6); 0 switches it off."""
    alpha_min: float = 1.0
    """Smallest α, reached when nothing fails any more."""
    alpha_max: float | None = None
    """Largest α; unset: κ − 1."""
    alpha_slope: float | None = None
    """λ of Eq. 7; unset: α_max − α_min, so that F̃ moves α over its whole range."""

    def validate(self) -> None:
        super().validate()
        require(self.kappa > 2, "kappa", self.kappa, "more than 2, so that α and β can both exceed 1")
        require(self.gamma > 0, "gamma", self.gamma, "a positive number")
        require(
            0 <= self.transform_below < 1, "transform_below", self.transform_below, "a failure rate in [0, 1)"
        )
        require(self.alpha_min >= 1, "alpha_min", self.alpha_min, "at least 1")
        require(
            self.alpha_min <= self._alpha_max <= self.kappa - 1,
            "alpha_max",
            self._alpha_max,
            f"between alpha_min={self.alpha_min} and kappa − 1 = {self.kappa - 1}",
        )
        slope = self.alpha_slope
        require(slope is None or slope > 0, "alpha_slope", slope, "a positive number")

    @property
    def _alpha_max(self) -> float:
        return self.kappa - 1.0 if self.alpha_max is None else self.alpha_max

    @property
    def _transformed(self) -> float:
        return transform(self.capability.failure_rate, self.gamma, self.transform_below)  # Eq. 6

    def shape(self) -> tuple[float, float]:
        return self._map(self._transformed)

    def _map(self, transformed: float) -> tuple[float, float]:
        slope = self._alpha_max - self.alpha_min if self.alpha_slope is None else self.alpha_slope
        return beta_shape(transformed, self.kappa, self.alpha_min, self._alpha_max, slope)  # Eq. 7

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "transformed_failure_rate": self._transformed}


@dataclass(eq=False, kw_only=True)
class ExploreExploit(CobaPaper):
    """CoBA-RL with the mapping reversed: α rises as failure falls (paper, Table 2).

    Starts with hard prompts and moves to easy ones; the ablation that the paper's order is measured against.
    """

    name: ClassVar[str] = "explore-exploit"

    def shape(self) -> tuple[float, float]:
        return self._map(1.0 - self._transformed)


@dataclass(eq=False, kw_only=True)
class Coba(BetaStrategy):
    """The recommended settings: the paper's value function (Eq. 9), calibrated by the batch.

    What is ours, and why (docs/experiments.md has the measurements):

    - Pass rates are moved along with the policy's ability, and hopeless prompts told from hard ones (`ability`):
      an estimate one epoch old lags behind the policy, and a window of one visit reads p = 0.9 as 1.0.
    - τ grows with the mean budget: `tau_per_rollout` times total/P, unless `tau` fixes it. Saturation then
      means the same at every budget; a τ of several rollouts gives everything to a few prompts.
    - The preferred pass rate, the mode of the density, follows what the policy can do: from `preferred_min` when
      nothing is solved to `preferred_max` when everything is.
    """

    name: ClassVar[str] = "coba"

    window: int = 3
    estimator: str | dict | PassRateEstimator = "ability"
    kappa: float = 11.0
    """Concentration κ = α + β of the preferred pass rates."""
    preferred_min: float = 0.15
    """Preferred pass rate of a policy that solves nothing."""
    preferred_max: float = 0.45
    """Preferred pass rate of a policy that solves everything."""
    tau_per_rollout: float = 0.4 / 16.0
    """τ as a share of the mean budget of a prompt; `tau` overrides it."""

    def validate(self) -> None:
        super().validate()
        require(self.kappa > 2, "kappa", self.kappa, "more than 2, so that α and β can both exceed 1")
        require(0 <= self.preferred_min <= 1, "preferred_min", self.preferred_min, "a pass rate in [0, 1]")
        require(0 <= self.preferred_max <= 1, "preferred_max", self.preferred_max, "a pass rate in [0, 1]")
        require(self.tau_per_rollout > 0, "tau_per_rollout", self.tau_per_rollout, "a positive number")

    def shape(self) -> tuple[float, float]:
        success = 1.0 - self.capability.failure_rate
        preferred = self.preferred_min + (self.preferred_max - self.preferred_min) * success
        alpha = 1.0 + (self.kappa - 2.0) * preferred  # the mode (α − 1)/(κ − 2) is the preferred pass rate
        return alpha, self.kappa - alpha

    def choose_tau(self, p_P: np.ndarray, mean_budget: float) -> float:
        return self.tau_per_rollout * mean_budget if self.tau is None else self.tau
