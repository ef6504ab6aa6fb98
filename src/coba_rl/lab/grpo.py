"""One GRPO update on unique rollouts: TRL's advantages and token-mean loss, without repeating equal rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.tasks.base import Problem

_EPSILON = 1e-4  # TRL adds it to the standard deviation


def advantages(rollouts: UniqueRollouts, score_U: np.ndarray, num_prompts: int) -> np.ndarray:
    """Normalised advantage of each unique rollout in its prompt's group.

    Args:
        rollouts: The step's rollouts.
        score_U: (U,) score of each, in [0, 1].
        num_prompts: P.

    Returns:
        (U,) score less the group's mean, over the group's standard deviation; 0 in groups whose scores are all the same.

    Example:
        >>> rollouts = UniqueRollouts(np.array([0, 0, 1]), [(1,), (2,), (1,)], np.array([1, 3, 4]))
        >>> advantages(rollouts, np.array([1.0, 0.0, 1.0]), num_prompts=2).round(3).tolist()
        [1.5, -0.5, 0.0]
    """
    prompt_U, count_U = rollouts.prompt_U, rollouts.count_U
    attempts = np.bincount(prompt_U, count_U, minlength=num_prompts)
    mean = np.bincount(prompt_U, count_U * score_U, minlength=num_prompts) / np.maximum(attempts, 1)
    deviation_U = score_U - mean[prompt_U]
    squares = np.bincount(prompt_U, count_U * deviation_U**2, minlength=num_prompts)
    scale = np.sqrt(squares / np.maximum(attempts - 1, 1)) + _EPSILON  # Bessel
    lowest, highest = np.full(num_prompts, np.inf), np.full(num_prompts, -np.inf)
    np.minimum.at(lowest, prompt_U, score_U)
    np.maximum.at(highest, prompt_U, score_U)
    return np.where((lowest < highest)[prompt_U], deviation_U / scale[prompt_U], 0.0)


def update(
    policy: LabPolicy,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[Problem],
    rollouts: UniqueRollouts,
    score_U: np.ndarray,
    weight_P: np.ndarray | None = None,
) -> float:
    """One on-policy optimiser step; returns the gradient norm before clipping.

    The loss is −Σ A·log π over tokens, divided by all tokens of the step. Where prompts have weights, they multiply A and
    nothing else. With a single on-policy update the importance ratio is 1 and the clip does not act, so the gradient is
    the clipped surrogate's.
    Rollouts whose advantage is 0 contribute nothing and are left out of the pass.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = policy_loss(policy, problems, rollouts, score_U, weight_P)
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
    score_U: np.ndarray,
    weight_P: np.ndarray | None = None,
) -> torch.Tensor | None:
    """The token-mean policy-gradient loss of a step; None when every group is dead."""
    weight_U = rollouts.count_U * advantages(rollouts, score_U, len(problems))
    if weight_P is not None:
        weight_U = weight_U * weight_P[rollouts.prompt_U]
    if not weight_U.any():
        return None
    return -policy.weighted_log_likelihood(problems, rollouts, weight_U) / rollouts.num_tokens
