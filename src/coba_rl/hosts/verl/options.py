"""`algorithm.coba.*`: the options of verl's configuration that describe the allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coba_rl.allocation import BudgetAllocator
from coba_rl.allocation.strategies import strategy_class
from coba_rl.errors import ConfigError, OptionError, suggestion

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


@dataclass(frozen=True, kw_only=True)
class CobaOptions:
    """What `algorithm.coba` holds. Every further key is an option of the strategy, e.g. `kappa` or `window`.

    Example:
        >>> options = CobaOptions.from_config({"strategy": "coba", "max_budget": 64, "kappa": 15})
        >>> options.max_budget, options.strategy_options
        (64, {'kappa': 15})
        >>> CobaOptions.from_config({"max_budgt": 64})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        coba_rl.errors.OptionError: algorithm.coba.max_budgt=64: strategy 'coba' has no such option. Did you mean \
'max_budget'? Known: ...
    """

    strategy: str = "coba"
    """A built-in strategy's name, or `package.module:Class`."""
    min_budget: int = 2
    """Fewest rollouts of a prompt."""
    max_budget: int = 128
    """Most rollouts of a prompt."""
    success_threshold: float | None = None
    """From which value on a rollout is a success; None: the value is graded success in [0, 1]."""
    success_key: str | None = None
    """Key of the reward function's result that says whether a rollout succeeded; None: `acc`, else `score`, else the
    rollout's reward."""
    strategy_options: dict[str, Any] = field(default_factory=dict)
    """Options of the strategy."""

    @classmethod
    def from_config(cls, section: Mapping[str, Any] | None) -> CobaOptions:
        """Read the section as plain containers.

        Raises:
            OptionError: An option that neither the host nor the strategy has.
            UnknownStrategyError: No such strategy.
        """
        given = dict(section or {})
        own = {option.name for option in fields(cls)} - {"strategy_options"}
        strategy = given.get("strategy", "coba")
        known = own | {option.name for option in fields(strategy_class(strategy))}  # type: ignore[arg-type]
        for key, value in given.items():
            if key not in known:
                raise OptionError(
                    f"algorithm.coba.{key}={value!r}: strategy {strategy!r} has no such option. "
                    f"{suggestion(key, known)}"
                )
        extra = {key: _plain(value) for key, value in given.items() if key not in own}
        return cls(**{key: value for key, value in given.items() if key in own}, strategy_options=extra)

    def __post_init__(self) -> None:
        if not (self.success_key is None or isinstance(self.success_key, str)):
            raise OptionError(
                f"algorithm.coba.success_key={self.success_key!r}: expected a key (text) or null."
            )
        threshold = self.success_threshold
        if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, (int, float))):
            raise OptionError(f"algorithm.coba.success_threshold={threshold!r}: expected a number or null.")

    def make_allocator(self) -> BudgetAllocator:
        """The allocator these options describe.

        Raises:
            OptionError: A value that the strategy cannot take, or bounds that are none.
        """
        return BudgetAllocator(
            self.strategy,
            bounds=(self.min_budget, self.max_budget),
            success_threshold=self.success_threshold,
            **self.strategy_options,
        )

    def check(self, allocator: BudgetAllocator, num_prompts: int, mean_budget: int, estimator: str) -> None:
        """Refuse a job that could not run to its end.

        Args:
            allocator: Made by `make_allocator`.
            num_prompts: `data.train_batch_size`.
            mean_budget: `actor_rollout_ref.rollout.n`.
            estimator: `algorithm.adv_estimator`.

        Raises:
            InfeasibleBudgetError: `num_prompts * mean_budget` rollouts do not fit the bounds.
            ConfigError: Groups of one under an estimator that compares the rollouts of a group.
        """
        allocator.strategy.check_feasible(num_prompts, num_prompts * mean_budget, *allocator.bounds)
        if self.min_budget < 2 and compares_rollouts(estimator):
            raise ConfigError(
                f"algorithm.coba.min_budget={self.min_budget!r} with algorithm.adv_estimator={str(estimator)!r}: "
                "expected at least 2, because verl takes the raw reward of a group of one as its advantage."
            )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
