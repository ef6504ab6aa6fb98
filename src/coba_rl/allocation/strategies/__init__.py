"""Strategies, one a file, and how they are found by name."""

from __future__ import annotations

from typing import Any

from coba_rl import plugins
from coba_rl.allocation.strategies.base import GainStrategy, Strategy
from coba_rl.allocation.strategies.coba import BetaStrategy, Coba, CobaPaper, ExploreExploit
from coba_rl.allocation.strategies.decay import LinearDecay
from coba_rl.allocation.strategies.gvm import Gvm
from coba_rl.allocation.strategies.knapsack import Knapsack
from coba_rl.allocation.strategies.release import CobaRelease
from coba_rl.allocation.strategies.static import StaticExploit, StaticExplore
from coba_rl.allocation.strategies.uniform import Uniform
from coba_rl.allocation.strategies.variance import Variance
from coba_rl.errors import UnknownStrategyError

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
    return plugins.find(name, STRATEGIES, kind="strategy", base=Strategy, error=UnknownStrategyError)


def make_strategy(strategy: str | Strategy, /, **options: Any) -> Strategy:
    """A strategy from its name and options; a `Strategy` object is returned as it is.

    Raises:
        UnknownStrategyError: See `strategy_class`.
        OptionError: An option that the strategy does not have, a value it cannot take, or options beside an object.

    Example:
        >>> make_strategy("coba", kappa=15).kappa
        15
    """
    return plugins.make(
        strategy, STRATEGIES, options, kind="strategy", base=Strategy, error=UnknownStrategyError
    )
