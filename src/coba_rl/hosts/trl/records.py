"""What happened to each prompt of one generation, as plain records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation


def allocation_records(step: int, allocation: Allocation, success_R: np.ndarray) -> list[dict[str, Any]]:
    """One record a prompt of the batch, JSON-able.

    Args:
        step: The optimizer step that trains on these rollouts first, counted from 1.
        allocation: The budgets.
        success_R: (R,) success of each rollout, as of `BudgetAllocator.success`, group after group; NaN is no
            attempt.

    Example:
        >>> allocation = Allocation(["a", "b"], np.array([2, 1]), np.array([0.5, np.nan]))
        >>> for record in allocation_records(3, allocation, np.array([1.0, 0.0, np.nan])):
        ...     print(record)
        {'step': 3, 'prompt_id': 'a', 'pass_rate': 0.5, 'budget': 2, 'successes': 1.0, 'attempts': 2}
        {'step': 3, 'prompt_id': 'b', 'pass_rate': None, 'budget': 1, 'successes': 0.0, 'attempts': 0}
    """
    judged_R = ~np.isnan(success_R)
    group_R, num_prompts = allocation.repeat_index, len(allocation.budgets)
    attempts_P = np.bincount(group_R[judged_R], minlength=num_prompts)
    successes_P = np.bincount(group_R[judged_R], success_R[judged_R], minlength=num_prompts)
    return [
        {
            "step": step,
            "prompt_id": prompt_id,
            "pass_rate": None if math.isnan(pass_rate) else float(pass_rate),
            "budget": int(budget),
            "successes": float(successes),
            "attempts": int(attempts),
        }
        for prompt_id, pass_rate, budget, successes, attempts in zip(
            allocation.prompt_ids,
            allocation.pass_rates.tolist(),
            allocation.budgets.tolist(),
            successes_P.tolist(),
            attempts_P.tolist(),
            strict=True,
        )
    ]
