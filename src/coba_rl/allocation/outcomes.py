"""From what single rollouts scored to what the prompts of a step scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.metrics import measure_outcomes
from coba_rl.allocation.prompt_table import PromptId


class Outcomes:
    """What a step's rollouts scored, the same to the last bit whatever the order of arrival.

    Args:
        prompt_ids: (R,) the prompt of each rollout.
        success_R: (R,) success in [0, 1]; NaN is no attempt.
        pilot_R: (R,) bool: whether it was of a first round, which had a say in how many followed; None: all were.
        length_R: (R,) tokens that it generated; None: not known.

    Example:
        >>> outcomes = Outcomes(["a", "b", "a"], np.array([1.0, np.nan, 0.0]), np.array([True, True, False]))
        >>> visits = outcomes.visits
        >>> visits.prompt_ids, visits.attempts_P.tolist(), visits.with_rest.attempts_P.tolist()
        (['a'], [1.0], [2.0])
    """

    def __init__(
        self,
        prompt_ids: Sequence[PromptId],
        success_R: np.ndarray,
        pilot_R: np.ndarray | None = None,
        length_R: np.ndarray | None = None,
    ) -> None:
        # In one order, so that sums round alike.
        self._ids = sorted(set(prompt_ids), key=lambda prompt_id: (isinstance(prompt_id, str), prompt_id))
        position = {prompt_id: i for i, prompt_id in enumerate(self._ids)}
        group_R = np.fromiter((position[i] for i in prompt_ids), np.int64, len(prompt_ids))
        self._counted = {} if length_R is None else {"tokens": float(length_R.sum())}
        length_R = np.zeros(len(success_R)) if length_R is None else length_R
        order = np.lexsort((length_R, success_R, group_R))
        order = order[~np.isnan(success_R[order])]
        self.num_unjudged = len(success_R) - len(order)
        self._group_R, self._success_R, self._length_R = group_R[order], success_R[order], length_R[order]
        self._pilot_R = np.ones(len(order), dtype=bool) if pilot_R is None else pilot_R[order]

    def _sums(self, chosen_R: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """(P,) successes and (P,) attempts of judged rollouts."""
        group_R, success_R, size = self._group_R[chosen_R], self._success_R[chosen_R], len(self._ids)
        attempts_P = np.bincount(group_R, minlength=size).astype(float)
        return np.bincount(group_R, success_R, minlength=size), attempts_P

    @cached_property
    def visits(self) -> Visits | None:
        """Of the prompts of which a rollout could be judged; None if there is none."""
        all_successes_P, all_attempts_P = self._sums()
        tried_P = all_attempts_P > 0
        if not tried_P.any():
            return None
        ids = [prompt_id for prompt_id, was_tried in zip(self._ids, tried_P, strict=True) if was_tried]
        whole = Visits(ids, all_successes_P[tried_P], all_attempts_P[tried_P])
        if self._pilot_R.all():
            return whole
        successes_P, attempts_P = (sums_P[tried_P] for sums_P in self._sums(self._pilot_R))
        # Where no rollout of the pilot was judged, none of the prompt's own had a say in how many followed.
        known_P = attempts_P > 0
        successes_P = np.where(known_P, successes_P, whole.successes_P)
        return Visits(ids, successes_P, np.where(known_P, attempts_P, whole.attempts_P), whole)

    @property
    def judged_rollouts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each, its prompt's position in `visits`, its success and its length; 0 where that is not known."""
        _, group_R = np.unique(self._group_R, return_inverse=True)
        return group_R, self._success_R, self._length_R

    def metrics(self) -> dict[str, float]:
        """Of the outcomes, without the `coba/` prefix."""
        counted = {"unjudged_rollouts": float(self.num_unjudged), **self._counted}
        visits = self.visits
        if visits is None:
            return counted
        success = {"success_per_prompt": visits.success_rate}
        successes_P, attempts_P = self._sums()
        return counted | success | measure_outcomes(self._success_R, self._group_R, attempts_P, successes_P)
