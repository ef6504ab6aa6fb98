"""Numbers read back from a saved state: each must be one that the program could have written."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from coba_rl.errors import StateError


def check_version(what: str, found: Any, known: int) -> None:
    """Refuse what another version wrote.

    Raises:
        StateError: `found` is not `known`.

    Example:
        >>> check_version("The state", 2, known=1)
        Traceback (most recent call last):
        coba_rl.errors.StateError: The state has version 2, this coba-rl reads version 1. Install the coba-rl that wrote it.
    """
    if found != known:
        raise StateError(
            f"{what} has version {found!r}, this coba-rl reads version {known}. Install the coba-rl that wrote it."
        )


def check_fits(state: Any, now: dict[str, Any], kept: tuple[str, ...]) -> None:
    """Refuse what no allocator like this one saved; warn of options that have changed since.

    Args:
        state: What was saved.
        now: The state of the allocator that is to go on.
        kept: What is an option beside those of the strategy.

    Raises:
        StateError: Not the state of an allocator, or of one with another version or strategy.
    """
    if not isinstance(state, dict) or "version" not in state:
        raise StateError(f"Not an allocator state: {type(state).__name__} without a version.")
    check_version("The allocator state", state["version"], now["version"])
    if state.get("strategy") != now["strategy"]:
        raise StateError(
            f"The state was saved by strategy {state.get('strategy')!r}, this run uses {now['strategy']!r}. Resume with "
            "the saved strategy or start a new run."
        )
    after = {**now["options"], **{name: now[name] for name in kept}}
    before = {**(state.get("options") or {}), **{name: state.get(name) for name in kept}}
    changed = sorted(name for name in after if before.get(name) != after[name])
    if changed:
        listed = ", ".join(f"{name}: {before.get(name)!r} → {after[name]!r}" for name in changed)
        warnings.warn(f"Resuming with changed allocation options ({listed}).", stacklevel=3)


def saved_number(state: dict[str, Any], name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A number of a saved state.

    Raises:
        StateError: It is missing, not a finite number, or outside [low, high].

    Example:
        >>> saved_number({"step": 3}, "step", low=0)
        3.0
    """
    value = state.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and low <= value <= high):
        raise StateError(
            f"The saved state is damaged: {name} is {value!r}, expected a number in [{low:g}, {high:g}]. "
            "Use another checkpoint."
        )
    return float(value)


def saved_numbers(
    state: dict[str, Any],
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    length: int | None = None,
) -> np.ndarray:
    """A list of numbers of a saved state, as a float64 array.

    Raises:
        StateError: It is missing, of another length, or holds anything but finite numbers in [low, high].
    """
    values = state.get(name)
    if not isinstance(values, list) or length not in (None, len(values)):
        expected = "a list of numbers" if length is None else f"a list of {length} numbers"
        raise StateError(
            f"The saved state is damaged: {name} is {values!r}, expected {expected}. Use another checkpoint."
        )
    return np.array([saved_number({name: value}, name, low, high) for value in values], dtype=float)
