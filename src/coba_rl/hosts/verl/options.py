"""`algorithm.coba.*`: the options of verl's configuration that describe the allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coba_rl.allocation import BudgetAllocator
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.errors import ConfigError, OptionError

SECTION = "algorithm.coba."
"""Where verl's configuration has the options."""

UNGROUPED_ESTIMATORS = ("gae", "reinforce_plus_plus")
"""Advantage estimators that compare nothing within a group, so that a group of one is no special case."""


def compares_rollouts(estimator: str) -> bool:
    """Whether an advantage is relative to the prompt's other rollouts, as far as is known.

    Args:
        estimator: `algorithm.adv_estimator`.

    Example:
        >>> compares_rollouts("grpo"), compares_rollouts("gae")
        (True, False)
    """
    return str(estimator) not in UNGROUPED_ESTIMATORS


@dataclass(frozen=True)
class CobaOptions:
    """What `algorithm.coba` holds: the keys of `AllocatorSpec.from_mapping`, and `success_key`.

    Example:
        >>> options = CobaOptions.from_config({"strategy": "coba", "max_budget": 64, "kappa": 15})
        >>> options.allocator.bounds, options.allocator.options
        ((2, 64), {'kappa': 15})
    """

    allocator: AllocatorSpec
    success_key: str | None = None
    """Key of the reward function's result that says whether a rollout succeeded; None: `acc`, else `score`, else the
    rollout's reward."""

    @classmethod
    def from_config(cls, section: Mapping[str, Any] | None) -> CobaOptions:
        """Read the section as plain containers.

        Raises:
            OptionError: An option that neither the host nor the strategy has.
            UnknownStrategyError: No such strategy.
        """
        given = dict(section or {})
        success_key = given.pop("success_key", None)
        if not (success_key is None or isinstance(success_key, str)):
            raise OptionError(f"{SECTION}success_key={success_key!r}: expected a key (text) or null.")
        return cls(AllocatorSpec.from_mapping(given, SECTION, ["success_key"]), success_key)

    def check(self, allocator: BudgetAllocator, num_prompts: int, mean_budget: int, estimator: str) -> None:
        """Refuse a job that could not run to its end.

        Args:
            allocator: Made of `allocator`.
            num_prompts: `data.train_batch_size`.
            mean_budget: `actor_rollout_ref.rollout.n`.
            estimator: `algorithm.adv_estimator`.

        Raises:
            InfeasibleBudgetError: `num_prompts * mean_budget` rollouts do not fit the bounds, or do not hold the pilot.
            ConfigError: Groups of one under an estimator that compares the rollouts of a group.
        """
        allocator.check_feasible(num_prompts, num_prompts * mean_budget)
        if allocator.mode == "rollouts" and allocator.bounds[0] < 2 and compares_rollouts(estimator):
            raise ConfigError(
                f"algorithm.coba.min_budget={allocator.bounds[0]!r} with algorithm.adv_estimator={str(estimator)!r}: "
                "expected at least 2, because verl takes the raw reward of a group of one as its advantage."
            )
