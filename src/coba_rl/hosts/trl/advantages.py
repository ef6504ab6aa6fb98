"""Group-relative advantages when every prompt has its own number of rollouts.

The formulas are those of `GRPOTrainer`. Groups become the rows of one matrix, padded with NaN to the widest group,
and go through the same NaN-aware reductions; with equal budgets it is the same matrix, so the result is the same to
the last bit.

Axes: `_P` prompts, `_R` rollouts of the whole step (flat, group after group), `_F` reward functions; a padded
matrix is (P, widest group).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from trl.trainer.utils import nanstd

_STD_FLOOR = 1e-4  # added to every standard deviation by GRPOTrainer

ALIKE_ULPS = 4
"""Rewards of a group that differ by no more than this many roundings of their size count as equal."""


@dataclass(frozen=True, eq=False)
class Advantages:
    """What one step's rewards come to."""

    values_R: torch.Tensor
    """(R,) float advantage of each rollout; 0 where nothing can be learned."""
    is_std_zero_R: torch.Tensor
    """(R,) bool: the rewards of the rollout's own group do not differ, whatever the scale."""


class Groups:
    """Where each rollout sits in the padded matrix.

    Args:
        budgets_P: (P,) int64 rollouts of each prompt, each at least 1.

    Example:
        >>> groups = Groups(torch.tensor([1, 2]))
        >>> groups.pad(torch.tensor([5.0, 6.0, 7.0])).tolist()
        [[5.0, nan], [6.0, 7.0]]
    """

    def __init__(self, budgets_P: torch.Tensor) -> None:
        positions = torch.arange(len(budgets_P), device=budgets_P.device)
        self.group_R = positions.repeat_interleave(budgets_P)
        starts_P = budgets_P.cumsum(0) - budgets_P
        rollouts = torch.arange(len(self.group_R), device=budgets_P.device)
        self.slot_R = rollouts - starts_P[self.group_R]
        self.shape = (len(budgets_P), int(budgets_P.max()))
        self.single_P = budgets_P == 1

    def pad(self, values_R: torch.Tensor) -> torch.Tensor:
        """(R, …) → (P, widest, …), NaN where a group has no such rollout."""
        padded = values_R.new_full((*self.shape, *values_R.shape[1:]), torch.nan)
        padded[self.group_R, self.slot_R] = values_R
        return padded

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """(P, widest, …) → (R, …)."""
        return padded[self.group_R, self.slot_R]


def group_advantages(
    rewards_RF: torch.Tensor,
    weights_F: torch.Tensor,
    budgets_P: torch.Tensor,
    *,
    scale_rewards: str = "group",
    aggregation: str = "sum_then_normalize",
) -> Advantages:
    """Advantage of each rollout within its own prompt's group.

    Args:
        rewards_RF: (R, F) reward of each rollout by each function, group after group; NaN where a function did
            not judge.
        weights_F: (F,) weight of each reward function.
        budgets_P: (P,) int64 rollouts of each prompt, sum R.
        scale_rewards: `group`, `batch` or `none`: whose standard deviation divides, as in `GRPOConfig`.
        aggregation: `sum_then_normalize` or `normalize_then_sum`, as in `GRPOConfig`.

    Returns:
        Advantages. A rollout that no function judged, a group of one and a group of rewards equal up to
        rounding get 0, whatever the scale of the rewards.

    Example:
        >>> rewards = torch.tensor([[1.0], [0.0], [1.0], [1.0], [1.0], [0.0]])
        >>> advantages = group_advantages(rewards, torch.ones(1), torch.tensor([2, 3, 1]))
        >>> [round(value, 2) for value in advantages.values_R.tolist()]
        [0.71, -0.71, 0.0, 0.0, 0.0, 0.0]
    """
    groups = Groups(budgets_P)
    unjudged_R = torch.isnan(rewards_RF).all(dim=1)
    if aggregation == "normalize_then_sum":
        values_R, alike_P = _normalize_then_sum(rewards_RF, weights_F, groups, unjudged_R)
    else:
        values_R, alike_P = _sum_then_normalize(rewards_RF, weights_F, groups, unjudged_R, scale_rewards)
    return Advantages(torch.nan_to_num(values_R, nan=0.0), alike_P[groups.group_R])


def _sum_then_normalize(
    rewards_RF: torch.Tensor,
    weights_F: torch.Tensor,
    groups: Groups,
    unjudged_R: torch.Tensor,
    scale_rewards: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    parts_RF = rewards_RF * weights_F.unsqueeze(0)
    rewards_R = parts_RF.nansum(dim=1)
    rewards_R[unjudged_R] = torch.nan
    padded = groups.pad(rewards_R)
    alike_P = _alike(padded, groups.pad(parts_RF.abs().nansum(dim=1)))
    centred_R = rewards_R - torch.nanmean(padded, dim=1)[groups.group_R]
    centred_R = centred_R.masked_fill(alike_P[groups.group_R], 0.0)
    if scale_rewards == "none":
        return centred_R, alike_P
    is_batch = scale_rewards == "batch"
    std_R = nanstd(rewards_R) if is_batch else _group_std(padded, groups.single_P)[groups.group_R]
    return centred_R / (std_R + _STD_FLOOR), alike_P


def _normalize_then_sum(
    rewards_RF: torch.Tensor, weights_F: torch.Tensor, groups: Groups, unjudged_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    padded = groups.pad(rewards_RF)
    mean = torch.nanmean(padded, dim=1, keepdim=True)
    std = _group_std(padded, groups.single_P).unsqueeze(1)
    alike_PF = _alike(padded, padded.abs())
    centred = (padded - mean).masked_fill(alike_PF.unsqueeze(1) & ~torch.isnan(padded), 0.0)
    rewards_R = (groups.unpad(centred / (std + _STD_FLOOR)) * weights_F.unsqueeze(0)).nansum(dim=1)
    rewards_R[unjudged_R] = torch.nan
    values_R = (rewards_R - torch.nanmean(rewards_R)) / (nanstd(rewards_R) + _STD_FLOOR)
    # The batch mean is 0 up to rounding; a group of one, which has nothing to be compared with, gets exactly 0.
    values_R = values_R.masked_fill(groups.single_P[groups.group_R], 0.0)
    return values_R, (alike_PF | (weights_F == 0)).all(dim=1)


def _alike(padded: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Which groups (dim 0) have rewards that differ by rounding alone, if they have more than one at all.

    The test is on the range, which is exactly 0 for equal rewards; a standard deviation is not, because the mean
    of equal numbers is rounded, and dividing that residue by itself makes an advantage of order 1 out of nothing.

    Args:
        padded: (P, widest, …) rewards, NaN where there is none.
        size: Same shape, magnitude that the rewards were computed from; sets the rounding.
    """
    missing = torch.isnan(padded)
    highest = padded.masked_fill(missing, -torch.inf).amax(dim=1)
    lowest = padded.masked_fill(missing, torch.inf).amin(dim=1)
    tolerance = ALIKE_ULPS * torch.finfo(padded.dtype).eps * size.masked_fill(missing, 0.0).amax(dim=1)
    return highest - lowest <= tolerance


def _group_std(padded: torch.Tensor, single_P: torch.Tensor) -> torch.Tensor:
    """(P, …) Bessel-corrected standard deviation of each group; 0 for a group of one."""
    std = nanstd(padded, dim=1)
    return std.masked_fill(single_P.view(-1, *[1] * (std.dim() - 1)), 0.0)
