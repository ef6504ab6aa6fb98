"""Rows to leave out of a step's training: what failures left without a group, and what exceeds the step's total."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

from coba_rl.hosts.session import Outcome
from coba_rl.hosts.verl.keys import parse_key


def lone_keys(keys: Sequence[str]) -> set[str]:
    """Rows of prompts of which a single rollout came back.

    Nothing is left to compare it with, and verl would take its raw reward as its advantage.

    Args:
        keys: `{uid}_{session}_{row}`.

    Example:
        >>> sorted(lone_keys(["a_0_0", "a_1_0", "b_3_0", "b_3_1"]))
        ['b_3_0', 'b_3_1']
    """
    return {
        key
        for rows_by_session in _groups(keys).values()
        if len(rows_by_session) == 1
        for rows in rows_by_session.values()
        for key in rows
    }


def surplus_keys(keys: Sequence[str], outcomes: Iterable[Outcome], limit: int) -> set[str]:
    """Rows to leave out so that at most `limit` rollouts remain.

    The groups that survive filtering are other ones than were allocated together, so their budgets can sum to more than
    the step's total. verl would then pad up to the next multiple of its mini-batch and take optimizer steps on little
    else than padding. Instead the largest groups lose their last rollouts, but never the two that differ most: a group
    that was kept because it has successes and failures keeps one of each.

    Args:
        keys: `{uid}_{session}_{row}`; the rows of a rollout stay together.
        outcomes: One a rollout.
        limit: Rollouts; at least two a group.

    Example:
        >>> rewards = {"a": [0.0, 0.0, 0.0, 1.0], "b": [1.0, 0.0]}
        >>> outcomes = [Outcome(uid, i, r, r) for uid, group in rewards.items() for i, r in enumerate(group)]
        >>> keys = [f"{outcome.group}_{outcome.index}_0" for outcome in outcomes]
        >>> sorted(surplus_keys(keys, outcomes, limit=4))
        ['a_1_0', 'a_2_0']
    """
    groups = _groups(keys)
    excess = sum(map(len, groups.values())) - limit
    if excess <= 0:
        return set()
    outcome_of = {(outcome.group, outcome.index): outcome for outcome in outcomes}
    by_worth = {
        uid: _by_worth([outcome_of[uid, session] for session in group]) for uid, group in groups.items()
    }
    surplus: set[str] = set()
    for _ in range(excess):
        largest = max(by_worth, key=lambda uid: len(by_worth[uid]))
        surplus.update(groups[largest][by_worth[largest].pop()])
    return surplus


def _groups(keys: Iterable[str]) -> dict[str, dict[int, list[str]]]:
    """Rows by prompt and session."""
    groups: dict[str, dict[int, list[str]]] = {}
    for key in keys:
        group, index, _ = parse_key(key)
        groups.setdefault(group, {}).setdefault(index, []).append(key)
    return groups


def _by_worth(group: Iterable[Outcome]) -> list[int]:
    """Sessions of a group: first the two that differ most, then the others as they were drawn."""
    in_order = sorted(group, key=lambda outcome: outcome.index)
    pair = max(combinations(in_order, 2), key=_difference, default=())
    return [outcome.index for outcome in (*pair, *(other for other in in_order if other not in pair))]


def _difference(pair: tuple[Outcome, Outcome]) -> tuple[float, float]:
    """In success, then in reward, which can also tell apart what scored alike."""
    gaps = pair[0].success - pair[1].success, pair[0].reward - pair[1].reward
    success, reward = (0.0 if math.isnan(gap) else abs(gap) for gap in gaps)
    return success, reward
