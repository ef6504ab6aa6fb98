"""GRPO updates on unique rollouts: TRL's advantages and clipped token-mean loss, without repeating equal rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.lab.prefix_tree import PrefixTree
from coba_rl.tasks.base import Problem

_EPSILON = 1e-4  # TRL adds it to the standard deviation
_CLIP = 0.2  # TRL's default


def advantages(
    rollouts: UniqueRollouts, score_U: np.ndarray, num_prompts: int, *, scale_rewards: bool = True
) -> np.ndarray:
    """Advantage of each unique rollout in its prompt's group.

    Args:
        rollouts: The step's rollouts.
        score_U: (U,) score of each, in [0, 1].
        num_prompts: P.
        scale_rewards: Divide by the group's standard deviation.

    Returns:
        (U,) score less the group's mean, scaled; 0 in groups whose scores are all the same.

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
    scale = np.ones(num_prompts)
    if scale_rewards:
        scale = np.sqrt(squares / np.maximum(attempts - 1, 1)) + _EPSILON  # Bessel
    lowest, highest = np.full(num_prompts, np.inf), np.full(num_prompts, -np.inf)
    np.minimum.at(lowest, prompt_U, score_U)
    np.maximum.at(highest, prompt_U, score_U)
    return np.where((lowest < highest)[prompt_U], deviation_U / scale[prompt_U], 0.0)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """GRPO's clipped objective of one step, the rollouts that pass an edge of their prefix tree taken together.

    Of a token, whose importance ratio is r, a rollout of advantage A counts min(r·A, clip(r)·A): the clip acts on one
    side only, which side A's sign tells. So positive and negative advantages are summed apart.
    """

    tree: PrefixTree
    up_E: torch.Tensor
    """Sum of the positive advantages of the rollouts that pass an edge."""
    down_E: torch.Tensor
    """Sum of the negative ones."""
    num_tokens: int
    """Tokens of the step, those of dead groups included."""

    def loss(self, log_p_E: torch.Tensor, old_E: torch.Tensor) -> torch.Tensor:
        """The token-mean loss, from log π of each edge now and when the rollouts were drawn."""
        ratio = torch.exp(log_p_E - old_E)
        gained = self.up_E * ratio.clamp(max=1.0 + _CLIP) + self.down_E * ratio.clamp(min=1.0 - _CLIP)
        return -gained.sum() / self.num_tokens


def surrogate(
    policy: LabPolicy,
    problems: Sequence[Problem],
    rollouts: UniqueRollouts,
    score_U: np.ndarray,
    weight_P: np.ndarray | None = None,
    *,
    scale_rewards: bool = True,
) -> Surrogate | None:
    """The objective of a step; None when every group is dead.

    Args:
        policy: What drew the rollouts.
        problems: The P problems of the step.
        rollouts: Its rollouts. Those whose advantage is 0 contribute nothing and are not read.
        score_U: (U,) score of each, in [0, 1].
        weight_P: (P,) factors of the prompts' advantages; None: 1 each.
        scale_rewards: Divide advantages by their group's standard deviation.
    """
    weight_U = rollouts.count_U * advantages(rollouts, score_U, len(problems), scale_rewards=scale_rewards)
    if weight_P is not None:
        weight_U = weight_U * weight_P[rollouts.prompt_U]
    used = np.flatnonzero(weight_U)
    if not len(used):
        return None
    tree = policy.tree(problems, rollouts.only(used))
    up_E, down_E = (
        torch.from_numpy(tree.sum_by_edge(part))
        for part in (weight_U[used].clip(min=0), weight_U[used].clip(max=0))
    )
    return Surrogate(tree, up_E, down_E, rollouts.num_tokens)


def update(
    policy: LabPolicy, optimizer: torch.optim.Optimizer, objective: Surrogate | None, updates: int = 1
) -> float:
    """Optimiser steps on the rollouts of one step; returns the mean gradient norm before clipping.

    Args:
        policy: As it was when it drew the rollouts.
        optimizer: Of its parameters.
        objective: See `surrogate`; None: nothing is done.
        updates: How many steps. The first has importance ratios of 1.
    """
    if objective is None:
        return 0.0
    norms, old_E = [], None
    for _ in range(updates):
        log_p_E = policy.log_probabilities(objective.tree)
        old_E = log_p_E.detach() if old_E is None else old_E
        optimizer.zero_grad(set_to_none=True)
        objective.loss(log_p_E, old_E).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_norm=1.0)))
        optimizer.step()
    return float(np.mean(norms))
