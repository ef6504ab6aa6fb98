"""Group filtering with uneven groups: keep what is trained on within the step's total."""

from __future__ import annotations

from collections.abc import Sequence


def surplus_keys(keys: Sequence[str], limit: int) -> set[str]:
    """Rows to leave out so that at most `limit` rollouts remain.

    The groups that survive filtering are other ones than were allocated together, so their budgets can sum to more than
    the step's total. verl would then pad up to the next multiple of its mini-batch and take optimizer steps on little
    else than padding. Instead the largest groups lose their last rollouts, which are as good a sample as any other.

    Args:
        keys: `{uid}_{session}_{row}`; the rows of a rollout stay together.
        limit: Rollouts.

    Example:
        >>> sorted(surplus_keys(["a_0_0", "a_1_0", "a_2_0", "a_2_1", "b_0_0", "b_1_0"], limit=4))
        ['a_2_0', 'a_2_1']
        >>> surplus_keys(["a_0_0"], limit=1)
        set()
    """
    sessions: dict[str, dict[int, list[str]]] = {}
    for key in keys:
        uid, session, _ = key.rsplit("_", 2)
        sessions.setdefault(uid, {}).setdefault(int(session), []).append(key)
    surplus: set[str] = set()
    for _ in range(sum(map(len, sessions.values())) - limit):
        largest = max(sessions.values(), key=len)
        surplus.update(largest.pop(max(largest)))
    return surplus
