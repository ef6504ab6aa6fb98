"""What an allocator is given, checked before it is used."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from coba_rl.allocation.strategies import Strategy
from coba_rl.allocation.success import graded
from coba_rl.errors import CobaError, InfeasibleBudgetError, OptionError

MODES = ("rollouts", "weights", "both")
BUDGET_UNITS = ("rollouts", "tokens")


def check_bounds(bounds: Any) -> tuple[int, int]:
    """(fewest, most) rollouts of a prompt.

    Raises:
        OptionError: Not two whole numbers with 1 ≤ fewest ≤ most.
    """
    try:
        low, high = (operator.index(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise OptionError(f"bounds={bounds!r}: expected two whole numbers (fewest, most).") from None
    if not 1 <= low <= high:
        raise OptionError(f"bounds={bounds!r}: expected 1 ≤ fewest ≤ most rollouts of a prompt.")
    return low, high


def check_mode(mode: Any) -> str:
    """What a strategy decides: numbers of rollouts, weights in the loss, or both.

    Raises:
        OptionError: None of `rollouts`, `weights`, `both`.
    """
    if mode not in MODES:
        raise OptionError(f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}.")
    return mode


def check_budget_unit(unit: Any, mode: str, strategy: Strategy) -> str:
    """What limits a step.

    Raises:
        OptionError: Neither `rollouts` nor `tokens`; tokens with weights, or with a strategy that cannot limit them.
    """
    if unit not in BUDGET_UNITS:
        raise OptionError(f"budget_unit={unit!r}: expected one of {', '.join(map(repr, BUDGET_UNITS))}.")
    if unit == "tokens" and mode != "rollouts":
        raise OptionError(
            f"budget_unit='tokens' with mode={mode!r}, whose budgets are even but for dead groups: there is nothing to limit. "
            "Leave one of them out."
        )
    if unit not in strategy.budget_units:
        raise OptionError(
            f"budget_unit={unit!r}: strategy {strategy.name!r} has no gains to weigh against tokens. Use one that has, such as "
            "'coba' or 'knapsack', or leave budget_unit out."
        )
    return unit


def check_unit_of_tokens(total: Any, unit: str, are_lengths_known: bool) -> None:
    """Whether a step can be given tokens in place of a total.

    Raises:
        TypeError: A total is given, too.
        OptionError: Tokens are not limited.
        InfeasibleBudgetError: No length has been observed yet.
    """
    if total is not None:
        raise TypeError(f"total={total!r} beside tokens: expected one of them.")
    if unit != "tokens":
        raise OptionError(f"tokens with budget_unit={unit!r}: make the allocator with budget_unit='tokens'.")
    if not are_lengths_known:
        raise InfeasibleBudgetError(
            "tokens: no length has been observed yet, so nobody knows how many rollouts that is. Give the first step a total."
        )


def check_lengths(lengths: Any, num_rollouts: int, unit: str) -> np.ndarray | None:
    """(R,) float64 generated tokens of each rollout.

    Raises:
        ValueError: Another number of them, one that is negative or not finite, or none where tokens are limited.
    """
    if lengths is None and unit != "tokens":
        return None
    length_R = np.asarray(np.nan if lengths is None else lengths, dtype=float)
    if length_R.shape == (num_rollouts,) and (np.isfinite(length_R) & (length_R >= 0.0)).all():
        return length_R
    found = "None" if lengths is None else f"an array of shape {length_R.shape}"
    if length_R.shape == (num_rollouts,):
        found = repr(float(length_R[~(length_R >= 0.0) | np.isinf(length_R)][0]))
    raise ValueError(
        f"lengths: {found}; expected the generated tokens, a finite number of at least 0, of each of {num_rollouts} rollouts."
    )


def check_pilot(pilot: Any, bounds: tuple[int, int], mode: str) -> int:
    """Rollouts of every prompt in a first round; 0: one round.

    Raises:
        OptionError: No whole number from 0 to the most rollouts of a prompt, or a first round in the mode `weights`.
    """
    if isinstance(pilot, bool) or not isinstance(pilot, (int, np.integer)) or not 0 <= pilot <= bounds[1]:
        raise OptionError(
            f"pilot={pilot!r}: expected a whole number of rollouts from 0 (one round) to {bounds[1]}, the most of a prompt."
        )
    if pilot and mode == "weights":
        raise OptionError(
            f"pilot={pilot!r} with mode='weights', where every prompt gets as many rollouts whatever the pilot shows: "
            "expected one of them. Leave the other out."
        )
    return int(pilot)


def check_room(num_prompts: int, total: int, each: int) -> None:
    """Raise `InfeasibleBudgetError` unless `total` holds a pilot of `each` rollouts a prompt."""
    if num_prompts * each > total:
        raise InfeasibleBudgetError(
            f"total={total} rollouts cannot hold a pilot of {each} for each of {num_prompts} prompts: expected at least "
            f"{num_prompts * each}. Lower pilot to at most {total // num_prompts}, or raise the total."
        )


def check_in_pilot(in_pilot: Any, num_rollouts: int, pilot: int) -> np.ndarray:
    """(R,) bool: whether each rollout was of the first round; all were where there is no other.

    Raises:
        ValueError: Not one truth value a rollout, or none with a pilot.
    """
    if in_pilot is None and not pilot:
        return np.ones(num_rollouts, dtype=bool)
    flags = np.asarray(in_pilot)
    if flags.shape == (num_rollouts,) and (flags.dtype == bool or not num_rollouts):
        return flags.astype(bool)
    raise ValueError(
        f"in_pilot={in_pilot!r} with pilot={pilot}: expected true or false for each of {num_rollouts} rollouts, true for "
        "those of the first round."
    )


def check_even(num_prompts: int, total: int) -> None:
    """Raise `InfeasibleBudgetError` unless `total` can be split evenly."""
    if num_prompts and total % num_prompts:
        raise InfeasibleBudgetError(
            f"total={total} rollouts in the mode 'weights', where each of {num_prompts} prompts gets as many: expected a "
            f"multiple of {num_prompts}, such as {num_prompts * math.ceil(total / num_prompts)}."
        )


def check_num_allocations(num_allocations: Any) -> int:
    """Allocations of a whole training.

    Raises:
        OptionError: No whole number of at least 1.
    """
    if isinstance(num_allocations, (int, np.integer)) and num_allocations >= 1:
        return int(num_allocations)
    raise OptionError(
        f"begin({num_allocations!r}): expected the allocations of the whole training, at least 1."
    )


def check_total(total: Any) -> int:
    """Rollouts of a step.

    Raises:
        TypeError: No whole number.
    """
    try:
        return operator.index(total)
    except TypeError:
        raise TypeError(f"total={total!r}: expected a whole number of rollouts (an int).") from None


def check_threshold(threshold: Any) -> float | None:
    """The score from which on a rollout succeeds; None without one.

    Raises:
        OptionError: No finite number.
    """
    if threshold is None:
        return None
    is_number = isinstance(threshold, (int, float, np.number)) and not isinstance(threshold, bool)
    if not is_number or not math.isfinite(threshold):
        raise OptionError(f"success_threshold={threshold!r}: expected a finite number or None.")
    return float(threshold)


def check_rates(pass_rates: Any, num_prompts: int) -> np.ndarray:
    """(P,) float64 pass rates, a copy.

    Raises:
        ValueError: Another number of them, or one outside [0, 1] by more than rounding.
    """
    try:
        rates = graded(pass_rates)
        if rates.shape == (num_prompts,):
            return rates
        problem = f"the shape {rates.shape}"
    except ValueError as error:
        problem = str(error)
    raise ValueError(
        f"pass_rates: {problem}; expected one number in [0, 1], or NaN, for each of the {num_prompts} prompts."
    )


def check_budgets(
    given: Any, num_prompts: int, total: int, bounds: tuple[int, int], strategy: str
) -> np.ndarray:
    """(P,) int64 budgets of a strategy.

    Raises:
        CobaError: Not one whole number within the bounds for each prompt, or another sum; it names the strategy.
    """
    budgets = np.asarray(given)
    # A total below the minimum has been refused, but for `coba-release`, which splits it evenly.
    low, high = min(bounds[0], total // max(num_prompts, 1)), bounds[1]
    if budgets.ndim != 1 or budgets.dtype.kind not in "iuf":
        problem = repr(given)
    elif len(budgets) != num_prompts or budgets.sum() != total:
        problem = f"{len(budgets)} budgets with sum {budgets.sum()}"
    else:
        sound = (budgets >= low) & (budgets <= high) & (budgets == np.floor(budgets))
        if sound.all():
            return budgets.astype(np.int64)
        problem = f"a budget of {budgets[~sound][0].item()!r}"
    raise CobaError(
        f"strategy {strategy} returned {problem}: expected {num_prompts} budgets with sum {total}, whole numbers from "
        f"{low} to {high}. This is a bug in it."
    )
