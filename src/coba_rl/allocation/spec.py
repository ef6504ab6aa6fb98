"""`AllocatorSpec`: what an allocator is made of, and the one way from any configuration to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from coba_rl.allocation.allocator import BudgetAllocator
from coba_rl.allocation.strategies import Strategy, make_strategy, strategy_class
from coba_rl.errors import OptionError, suggestion

_OWN = ("strategy", "min_budget", "max_budget", "success_threshold", "mode", "pilot", "budget_unit")


@dataclass(frozen=True, kw_only=True)
class AllocatorSpec:
    """What an allocator is made of. Making one checks nothing; `build` does.

    Example:
        >>> spec = AllocatorSpec(strategy="coba", bounds=(2, 64), options={"kappa": 15})
        >>> spec.build().strategy.kappa
        15
    """

    strategy: str | Strategy = "coba"
    """Name of a built-in strategy, `"package.module:Class"`, or a `Strategy` object, which serves one allocator."""
    bounds: tuple[int, int] = (2, 128)
    """(fewest, most) rollouts of a prompt."""
    success_threshold: float | None = None
    """Score from which a rollout is a success; None: the score is graded success in [0, 1]."""
    mode: str = "rollouts"
    """`rollouts`, `weights` or `both`: what the strategy decides, see `BudgetAllocator`."""
    pilot: int = 0
    """Rollouts of every prompt in a first round, which is looked at before the rest is shared out; 0: one round."""
    budget_unit: str = "rollouts"
    """`rollouts` or `tokens`: what limits a step, see `BudgetAllocator`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy."""

    @classmethod
    def from_mapping(
        cls, section: Mapping[str, Any], where: str = "", neighbours: Iterable[str] = ()
    ) -> AllocatorSpec:
        """The spec that a section of a configuration file or a command line describes.

        Args:
            section: `strategy`, `min_budget`, `max_budget`, `success_threshold`, `mode`, `pilot`, `budget_unit`; every other
                key is an option of the strategy. Keys that are missing have their defaults.
            where: Name of the section, for messages, e.g. `algorithm.coba.`.
            neighbours: Keys of the section that were taken out, which a misspelt key may have meant.

        Raises:
            OptionError: A key that neither the section nor the strategy has.
            UnknownStrategyError: No such strategy.

        Example:
            >>> AllocatorSpec.from_mapping({"max_budget": 64, "kappa": 15}).options
            {'kappa': 15}
            >>> AllocatorSpec.from_mapping({"max_budgt": 64}, "algorithm.coba.")  # doctest: +ELLIPSIS
            Traceback (most recent call last):
            coba_rl.errors.OptionError: algorithm.coba.max_budgt=64: strategy 'coba' has no such option. Did you mean \
'max_budget'? Known: ...
        """
        strategy = section.get("strategy", cls.strategy)
        known = {*_OWN, *(option.name for option in fields(strategy_class(strategy)))}  # type: ignore[arg-type]
        for key, value in section.items():
            if key not in known:
                raise OptionError(
                    f"{where}{key}={value!r}: strategy {strategy!r} has no such option. {suggestion(key, {*known, *neighbours})}"
                )
        low, high = cls.bounds
        return cls(
            strategy=strategy,
            bounds=(section.get("min_budget", low), section.get("max_budget", high)),
            success_threshold=section.get("success_threshold"),
            mode=section.get("mode", cls.mode),
            pilot=section.get("pilot", cls.pilot),
            budget_unit=section.get("budget_unit", cls.budget_unit),
            options={key: value for key, value in section.items() if key not in _OWN},
        )

    def build(self) -> BudgetAllocator:
        """A fresh allocator.

        Raises:
            UnknownStrategyError: No such strategy.
            OptionError: An option that the strategy does not have, or a value it cannot take.
        """
        # Made here, for an option may have the name of an argument of the allocator.
        strategy = make_strategy(self.strategy, **self.options)
        return BudgetAllocator(
            strategy,
            bounds=self.bounds,
            success_threshold=self.success_threshold,
            mode=self.mode,
            pilot=self.pilot,
            budget_unit=self.budget_unit,
        )
