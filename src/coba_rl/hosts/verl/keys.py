"""Keys of verl's rows: which rollout of which group a row is.

verl numbers the rollouts of a submission from 0. Those that follow a pilot are submitted under a name of their own, which
says to which group they belong and at which number they go on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_REST = re.compile(r"(.+)-from-(\d+)")


class RowKey(NamedTuple):
    """Where a row belongs."""

    group: str
    """verl's uid of the prompt in the step's batch."""
    index: int
    """Which of the group's rollouts, from 0."""
    row: int
    """Which of the rollout's rows, from 0."""


def parse_key(key: str) -> RowKey:
    """Read `{uid}_{session}_{row}`.

    Example:
        >>> parse_key("7f_1_0"), parse_key(f"{rest_uid('7f', 4)}_1_0")
        (RowKey(group='7f', index=1, row=0), RowKey(group='7f', index=5, row=0))
    """
    uid, session, row = key.rsplit("_", 2)
    rest = _REST.fullmatch(uid)
    group, first = (rest[1], int(rest[2])) if rest else (uid, 0)
    return RowKey(group, first + int(session), int(row))


def rest_uid(uid: str, pilot: int) -> str:
    """The uid under which a group's rollouts after its pilot are submitted."""
    return f"{uid}-from-{pilot}"
