"""Strategies, one a file, and how they are found by name."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

from coba_rl.allocation.strategies.base import GainStrategy, Strategy
from coba_rl.allocation.strategies.coba import BetaStrategy, Coba, CobaPaper, ExploreExploit
from coba_rl.allocation.strategies.decay import LinearDecay
from coba_rl.allocation.strategies.gvm import Gvm
from coba_rl.allocation.strategies.knapsack import Knapsack
from coba_rl.allocation.strategies.release import CobaRelease
from coba_rl.allocation.strategies.static import StaticExploit, StaticExplore
from coba_rl.allocation.strategies.uniform import Uniform
from coba_rl.allocation.strategies.variance import Variance
from coba_rl.errors import OptionError, UnknownStrategyError, suggestion

STRATEGIES: dict[str, type[Strategy]] = {
    "coba": Coba,
    "coba-paper": CobaPaper,
    "coba-release": CobaRelease,
    "uniform": Uniform,
    "knapsack": Knapsack,
    "static-exploit": StaticExploit,
    "static-explore": StaticExplore,
    "linear-decay": LinearDecay,
    "explore-exploit": ExploreExploit,
    "variance": Variance,
    "gvm": Gvm,
}
"""The built-in strategies by name."""

__all__ = ["STRATEGIES", "BetaStrategy", "GainStrategy", "Strategy", "make_strategy", "strategy_class"]


def strategy_class(name: str) -> type[Strategy]:
    """Find a strategy by its name or as `"package.module:Class"`.

    Raises:
        UnknownStrategyError: Not built in, not importable, or not a `Strategy`.
    """
    if not isinstance(name, str):
        raise UnknownStrategyError(
            f'strategy={name!r}: expected a name, "package.module:Class", or a Strategy object (an instance).'
        )
    if name in STRATEGIES:
        return STRATEGIES[name]
    if ":" not in name:
        raise UnknownStrategyError(
            f'Unknown strategy {name!r}. {suggestion(name, STRATEGIES)} Your own: "package.module:Class".'
        )
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnknownStrategyError(f"Strategy {name!r} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise UnknownStrategyError(f"Strategy {name!r} is not a subclass of coba_rl.Strategy.")
    return found


def make_strategy(name: str, /, **options: Any) -> Strategy:
    """Build a strategy from its name and options.

    Raises:
        UnknownStrategyError: See `strategy_class`.
        OptionError: An option that the strategy does not have, or a value it cannot take.

    Example:
        >>> make_strategy("coba", kappa=15).kappa
        15
    """
    cls = strategy_class(name)
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise OptionError(f"Strategy {name!r} has no option {option!r}. {suggestion(option, known)}")
    return cls(**options)
