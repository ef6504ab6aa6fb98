"""How capable the policy is now, and which pass rates it should therefore practise.

Equations 4, 6 and 7 of CoBA-RL (arXiv 2602.03048): failure rate → transformed failure rate → Beta shape.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from coba_rl.allocation.saved import saved_numbers
from coba_rl.errors import OptionError


def transform(failure: float, gamma: float = 10.0, below: float = 0.5) -> float:
    """F̃ = F̄, but sigmoid(γ(F̄ − below)) where F̄ is at most `below` (Eq. 6).

    Args:
        failure: F̄, the smoothed failure rate, in [0, 1].
        gamma: Steepness γ of the sigmoid.
        below: Where the sigmoid takes over, 0.5 in the paper. 0 switches the transform off.

    Returns:
        F̃ in [0, 1].

    Example:
        >>> transform(0.8), round(transform(0.3), 4)
        (0.8, 0.1192)
    """
    if failure > below or below == 0.0:
        return failure
    odds = math.exp(gamma * (failure - below))  # the exponent is ≤ 0, so no γ can overflow it
    return odds / (1.0 + odds)


def beta_shape(
    transformed: float, kappa: float, alpha_min: float, alpha_max: float, slope: float
) -> tuple[float, float]:
    """α = clip(α_min + λF̃, α_min, α_max), β = κ − α (Eq. 7).

    With α_min = 1 and λ = κ − 2 the mode of the density, (α − 1)/(κ − 2), is F̃ itself: the preferred pass
    rate is the transformed failure rate.

    Args:
        transformed: F̃ in [0, 1].
        kappa: Concentration κ = α + β, > 2.
        alpha_min: Smallest α, ≥ 1.
        alpha_max: Largest α, ≤ κ − 1.
        slope: λ.

    Returns:
        (α, β).

    Example:
        >>> beta_shape(0.5, kappa=11, alpha_min=1, alpha_max=10, slope=9)
        (5.5, 5.5)
    """
    alpha = min(max(alpha_min + slope * transformed, alpha_min), alpha_max)
    return alpha, kappa - alpha


class Capability:
    """Moving average F̄ of the failure rate over the last k observed steps (Eq. 6).

    Args:
        window: k, in steps, ≥ 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise OptionError(
                f"window={window!r}: expected at least 1 step. Set window=1 to follow each step."
            )
        self._recent: deque[float] = deque(maxlen=window)

    def update(self, failure: float) -> None:
        """Take in the failure rate of one step."""
        self._recent.append(failure)

    @property
    def failure_rate(self) -> float:
        """F̄; 1.0 before any outcome (a policy that has solved nothing yet)."""
        return float(np.mean(self._recent)) if self._recent else 1.0

    @property
    def started(self) -> bool:
        """Whether any step has been observed."""
        return bool(self._recent)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        recent = saved_numbers(state, "recent", low=0.0, high=1.0)
        self._recent.clear()
        self._recent.extend(recent.tolist())
