"""How much the advantages of a prompt count: the shares of a strategy as factors of the loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.allocation.strategies import Strategy

WEIGHT_BOUNDS = (0.5, 2.0)
"""Least and greatest weight of a prompt. Wider bounds learn no faster, and less steadily (docs/experiments.md)."""

_FEWEST = 16
"""Rollouts of a prompt, on average, that weights are worked out with at least: they are multiples of one in so many."""


def prompt_weights(
    strategy: Strategy, prompt_ids: Sequence[PromptId], visits: Visits | None, mean_budget: float
) -> np.ndarray:
    """(P,) weights of mean 1: budgets that the strategy would give, knowing the step's outcomes, over their mean.

    Outcomes of the step itself say more of today's pass rates than all that came before, and cost nothing.

    Args:
        strategy: Whose shares they are; it learns nothing.
        prompt_ids: (P,) the prompts, P ≥ 1.
        visits: What the step's rollouts scored; None if none was judged.
        mean_budget: Rollouts of a prompt, on average.
    """
    ids = list(prompt_ids)
    p_P = strategy.pass_rates(ids) if visits is None else strategy.pass_rates_given(ids, visits)
    mean = max(_FEWEST, round(mean_budget))
    low, high = (round(bound * mean) for bound in WEIGHT_BOUNDS)
    return strategy.allocate(p_P, mean * len(ids), low, high) / mean
