"""Which reward says whether a rollout succeeded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coba_rl.allocation import BudgetAllocator
from coba_rl.errors import ConfigError, suggestion


def success_index(name: str | None, reward_names: Sequence[str]) -> int:
    """Position of the reward function that is success; the first one if no name is given.

    Raises:
        ConfigError: No reward function has the name.

    Example:
        >>> success_index("correct", ["length", "correct"])
        1
    """
    if name is None:
        return 0
    if name not in reward_names:
        raise ConfigError(f"success_reward={name!r} is no reward function. {suggestion(name, reward_names)}")
    return list(reward_names).index(name)


def check_success(allocator: BudgetAllocator, reward_R: torch.Tensor, name: str) -> None:
    """Refuse rewards that are no success, before they reach the model or the pass rates.

    Args:
        allocator: Its `success` is the rule.
        reward_R: (R,) values of the success reward; NaN is no attempt.
        name: The reward function, for the message.

    Raises:
        ConfigError: Without a threshold, a value outside [0, 1].
    """
    try:
        allocator.success(reward_R.cpu().double().numpy())
    except ValueError as error:
        raise ConfigError(
            f"Reward function {name!r}: {error} Or set success_reward to a reward function that returns 0 to 1."
        ) from None
