"""Rollouts of a step that were drawn in two rounds. Axes: `_U` unique rollouts."""

from __future__ import annotations

import numpy as np

from coba_rl.lab.policy import UniqueRollouts


def joined(
    first: UniqueRollouts, score_U: np.ndarray, rest: UniqueRollouts, rest_score_U: np.ndarray
) -> tuple[UniqueRollouts, np.ndarray, np.ndarray]:
    """Both rounds as one: equal completions of a prompt that score the same are merged.

    Args:
        first: Of the pilot.
        score_U: (U,) their scores.
        rest: Of the second round.
        rest_score_U: (U,) their scores.

    Returns:
        The rollouts; (U,) their scores; and (U,) how many of each were of the pilot.

    Example:
        >>> first, rest = UniqueRollouts(np.array([0, 1]), [(1,), (2,)], np.array([2, 2])), UniqueRollouts(np.array([1]), [(2,)], np.array([3]))
        >>> rollouts, score_U, pilot_U = joined(first, np.array([0.0, 1.0]), rest, np.array([1.0]))
        >>> rollouts.prompt_U.tolist(), rollouts.count_U.tolist(), pilot_U.tolist()
        ([0, 1], [2, 5], [2, 2])
    """
    counts: dict[tuple[int, tuple[int, ...], float], list[int]] = {}
    for number, (rollouts, scores) in enumerate(((first, score_U), (rest, rest_score_U))):
        kinds = zip(rollouts.prompt_U.tolist(), rollouts.completions, scores.tolist(), strict=True)
        for kind, count in zip(kinds, rollouts.count_U.tolist(), strict=True):
            counts.setdefault(kind, [0, 0])[number] += count
    kinds_U = sorted(counts)
    count_U2 = np.array([counts[kind] for kind in kinds_U])
    prompts, completions, scores = zip(*kinds_U, strict=True)
    rollouts = UniqueRollouts(np.array(prompts), list(completions), count_U2.sum(axis=1))
    return rollouts, np.array(scores), count_U2[:, 0]
