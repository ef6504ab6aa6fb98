"""The errors a user can cause. Each message says what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CobaError(Exception):
    """Base of every error that coba-rl raises on purpose."""


class InfeasibleBudgetError(CobaError, ValueError):
    """No allocation can spend the total within the bounds."""


class UnknownStrategyError(CobaError, ValueError):
    """The strategy is neither built in nor importable."""


class OptionError(CobaError, ValueError):
    """An option that a part does not have, or a value it cannot take; or no such part."""


class StateError(CobaError, ValueError):
    """A saved state that is damaged, from a newer version, or of something else."""


class ConfigError(CobaError, ValueError):
    """A configuration that cannot be run."""


class DatasetError(CobaError, ValueError):
    """A data set that is missing, unreadable, or lacks what training needs."""


def suggestion(given: str, known: Iterable[str]) -> str:
    """Finish an error message about an unknown name.

    Example:
        >>> suggestion("knapsak", ["uniform", "knapsack"])
        "Did you mean 'knapsack'? Known: knapsack, uniform."
    """
    known = sorted(known)
    near = get_close_matches(given, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{hint}Known: {', '.join(known) or 'none'}."
