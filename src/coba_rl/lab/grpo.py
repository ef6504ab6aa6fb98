"""One GRPO update on unique rollouts: TRL's advantages and token-mean loss, without repeating equal rows.

Of the `count_U` rollouts that a unique rollout stands for, `success_U` were judged right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.tasks.base import Problem

_EPSILON = 1e-4  # TRL adds it to the standard deviation


def advantages(
    rollouts: UniqueRollouts, success_U: np.ndarray, num_prompts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Normalised advantage of a right and of a wrong rollout in each prompt's group.

    Args:
        rollouts: The step's rollouts.
        success_U: (U,) how many of each were judged right.
        num_prompts: P.

    Returns:
        (P,) advantage of a right rollout, (P,) of a wrong one; both 0 in dead groups.
    """
    attempts = np.bincount(rollouts.prompt_U, rollouts.count_U, minlength=num_prompts)
    right = np.bincount(rollouts.prompt_U, success_U, minlength=num_prompts)
    mean = right / np.maximum(attempts, 1)
    variance = attempts * mean * (1.0 - mean) / np.maximum(attempts - 1, 1)  # Bessel
    scale = np.sqrt(variance) + _EPSILON
    alive = (right > 0) & (right < attempts)
    return np.where(alive, (1.0 - mean) / scale, 0.0), np.where(alive, -mean / scale, 0.0)


def update(
    policy: LabPolicy,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[Problem],
    rollouts: UniqueRollouts,
    success_U: np.ndarray,
    weight_P: np.ndarray | None = None,
) -> float:
    """One on-policy optimiser step; returns the gradient norm before clipping.

    The loss is −Σ A·log π over tokens, divided by all tokens of the step. Where prompts have weights, they multiply A and
    nothing else. With a single on-policy update the importance ratio is 1 and the clip does not act, so the gradient is
    the clipped surrogate's.
    Rollouts whose advantages cancel or vanish contribute nothing and are left out of the pass.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = policy_loss(policy, problems, rollouts, success_U, weight_P)
    if loss is None:
        return 0.0
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_norm=1.0)
    optimizer.step()
    return float(norm)


def policy_loss(
    policy: LabPolicy,
    problems: Sequence[Problem],
    rollouts: UniqueRollouts,
    success_U: np.ndarray,
    weight_P: np.ndarray | None = None,
) -> torch.Tensor | None:
    """The token-mean policy-gradient loss of a step; None when every group is dead."""
    right, wrong = advantages(rollouts, success_U, len(problems))
    successes, failures = success_U, rollouts.count_U - success_U
    weight_U = successes * right[rollouts.prompt_U] + failures * wrong[rollouts.prompt_U]
    if weight_P is not None:
        weight_U = weight_U * weight_P[rollouts.prompt_U]
    if not weight_U.any():
        return None
    return -policy.weighted_log_likelihood(problems, rollouts, weight_U) / rollouts.num_tokens
