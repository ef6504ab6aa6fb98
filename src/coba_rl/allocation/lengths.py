"""How many tokens a rollout of each prompt is expected to generate, if it is right and if it is wrong.

Axes: `_P` prompts, `_R` rollouts, `_O` outcomes: right, wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coba_rl.allocation.estimators.base import COUNT
from coba_rl.allocation.prompt_table import PromptId, PromptTable
from coba_rl.allocation.saved import saved_numbers

OUTCOMES = ("right", "wrong")
_LEVELS = (1e-6, 1e6)
_LONGEST = 1e12  # tokens
_LEAST_SHARE = 1e-6  # of a rollout: less tells nothing


class LengthModel:
    """Lengths per prompt and outcome, from those of its past rollouts and of all others.

    A right (or wrong) rollout of prompt i is expected to generate level · (Σ length + n₀·centre)/(n + n₀) tokens. The sum
    is over its n past rollouts of that outcome, of which a visit keeps half; n₀ = `PRIOR_ROLLOUTS` draws prompts with few
    of them towards the centre, the length in a typical prompt. Lengths grow as a policy trains: the level follows how
    the lengths in prompts that come back compare with those in the same prompts before, and moves all prompts, visited
    or not; past lengths are kept divided by the level of their time. A prompt never visited has level · centre.

    Graded success s counts as s of a right rollout and 1 − s of a wrong one. An empty completion counts as one token, and
    one far from what was expected as `MOST_TIMES` that or the same share of it. A prompt takes 54 bytes at most.

    Example:
        >>> model = LengthModel()
        >>> group = np.array([0, 0, 1, 1])
        >>> error = model.update(["long", "short"], group, np.array([1.0, 0.0, 1.0, 0.0]), np.array([80, 90, 20, 30]))
        >>> model.cost(["long", "short", "new"], np.array([0.5, 0.5, 0.5])).round(1).tolist()
        [70.0, 40.0, 55.0]
    """

    PRIOR_ROLLOUTS = 1.0
    """n₀: how many rollouts of a prompt weigh as much as what is known of the others."""
    KEPT = 0.5
    """Share of a prompt's old rollouts that a visit keeps."""
    MOST_TIMES = 10.0
    """A single length counts as this many times what was expected at most."""
    DRIFT_ROLLOUTS = 32.0
    """Comparisons of a rollout with one of the prompt's past from which half of what they show of the level is believed."""
    CENTRE_PROMPTS = 64.0
    """Prompts that the centre so far counts for, beside those of a step."""

    def __init__(self) -> None:
        self.table = PromptTable(
            {f"{outcome}_{what}": COUNT for outcome in OUTCOMES for what in ("rollouts", "tokens")}
        )
        self._level_O = np.ones(2)
        """How much longer completions are than at the beginning; columns hold tokens divided by it."""
        self._centre_O = np.ones(2)
        """Tokens at level 1 in a typical prompt."""
        self._prompts_O = np.zeros(2)
        """Prompts that the centre counts for; 0: no such rollout has been seen."""

    @property
    def started(self) -> bool:
        """Whether any rollout has been seen."""
        return bool(self._prompts_O.any())

    def cost(self, prompt_ids: Sequence[PromptId], p_P: np.ndarray) -> np.ndarray:
        """(P,) expected tokens of a rollout: p·right + (1 − p)·wrong; all 1 before any rollout has been seen.

        Args:
            prompt_ids: The prompts.
            p_P: Pass rates, none unknown.
        """
        right_P, wrong_P = self._expected(self.table.rows(prompt_ids))
        return p_P * right_P + (1.0 - p_P) * wrong_P

    def _expected(self, row_P: np.ndarray) -> np.ndarray:
        """(O, P) tokens."""
        rollouts_OP, tokens_OP = np.zeros((2, 2, len(row_P)))
        seen_P = row_P >= 0
        for o, outcome in enumerate(OUTCOMES):
            rollouts_OP[o, seen_P] = self.table[f"{outcome}_rollouts"][row_P[seen_P]]
            tokens_OP[o, seen_P] = self.table[f"{outcome}_tokens"][row_P[seen_P]]
        level_O, centre_O = self._level_O, self._centre_O
        if (self._prompts_O > 0.0).sum() == 1:  # as long as those of the other outcome
            known = int(self._prompts_O.argmax())
            level_O, centre_O = level_O[[known] * 2], centre_O[[known] * 2]
        prior = self.PRIOR_ROLLOUTS
        return level_O[:, None] * (tokens_OP + prior * centre_O[:, None]) / (rollouts_OP + prior)

    def update(
        self, prompt_ids: Sequence[PromptId], group_R: np.ndarray, success_R: np.ndarray, length_R: np.ndarray
    ) -> float | None:
        """Take in one step's judged rollouts.

        Args:
            prompt_ids: (P,) distinct prompts.
            group_R: Position of each rollout's prompt among them; each prompt has one at least.
            success_R: In [0, 1].
            length_R: Generated tokens, finite and ≥ 0.

        Returns:
            Mean over prompts of |generated − expected|/expected tokens, given what was right; None in the first step.
        """
        row_P, length_R = self.table.rows(prompt_ids, create=True), np.clip(length_R, 1.0, _LONGEST)
        expected_OP = self._expected(row_P) if self.started else np.full((2, len(row_P)), np.median(length_R))
        expected_OR = expected_OP[:, group_R]
        share_OR = np.stack([success_R, 1.0 - success_R])
        share_OR[share_OR < _LEAST_SHARE] = 0.0
        length_OR = np.clip(length_R, expected_OR / self.MOST_TIMES, expected_OR * self.MOST_TIMES)
        rollouts_OP = np.stack([_sums(group_R, share_R, len(row_P)) for share_R in share_OR])
        tokens_OP = np.stack([_sums(group_R, tokens_R, len(row_P)) for tokens_R in share_OR * length_OR])
        ahead_P = (rollouts_OP * expected_OP).sum(axis=0)
        error_P = np.abs(_sums(group_R, length_R, len(row_P)) / ahead_P - 1.0)
        error = float(error_P.mean()) if self.started else None
        for o, outcome in enumerate(OUTCOMES):
            self._learn(o, outcome, row_P, rollouts_OP, tokens_OP[o])
        return error

    def _learn(
        self, o: int, outcome: str, row_P: np.ndarray, rollouts_OP: np.ndarray, tokens_P: np.ndarray
    ) -> None:
        """What the rollouts of one outcome tell of the level, of a typical prompt, and of each prompt itself."""
        has_P = rollouts_OP[o] > 0.0
        if not has_P.any():
            return
        row_P, rollouts_P, tokens_P = row_P[has_P], rollouts_OP[o, has_P], tokens_P[has_P]
        past_P, past_tokens_P = self.table[f"{outcome}_rollouts"], self.table[f"{outcome}_tokens"]
        self._move_level(o, past_P[row_P], past_tokens_P[row_P], rollouts_P, tokens_P / rollouts_P)
        tokens_P = tokens_P / self._level_O[o]
        # What even budgets would find: a prompt counts by the share of this outcome.
        share_P = rollouts_P / rollouts_OP[:, has_P].sum(axis=0)
        found = float((share_P * (tokens_P / rollouts_P)).sum() / share_P.sum())
        weight = share_P.sum() / (share_P.sum() + self._prompts_O[o])
        self._centre_O[o] += weight * (found - self._centre_O[o])
        self._prompts_O[o] = min(self._prompts_O[o] + share_P.sum(), self.CENTRE_PROMPTS)
        past_P[row_P] = self.KEPT * past_P[row_P] + rollouts_P
        past_tokens_P[row_P] = self.KEPT * past_tokens_P[row_P] + tokens_P

    def _move_level(
        self,
        o: int,
        past_P: np.ndarray,
        past_tokens_P: np.ndarray,
        rollouts_P: np.ndarray,
        mean_P: np.ndarray,
    ) -> None:
        """Follow how each prompt's mean length compares with that of its own past, so that which prompts came is all one."""
        known_P = past_P > 0.0
        weight_P = past_P[known_P] / (
            past_P[known_P] / rollouts_P[known_P] + 1.0
        )  # by how sure the comparison is
        before = self._level_O[o] * (weight_P * (past_tokens_P[known_P] / past_P[known_P])).sum()
        if before > 0.0:
            ratio = (weight_P * mean_P[known_P]).sum() / before
            believed = weight_P.sum() / (weight_P.sum() + self.DRIFT_ROLLOUTS)
            self._level_O[o] = np.clip(self._level_O[o] * ratio**believed, *_LEVELS)

    def state_dict(self, *, arrays: bool = False) -> dict[str, Any]:
        """JSON-able state.

        Args:
            arrays: Leave what is kept of each prompt in NumPy arrays, views that are valid until the next `update`.
        """
        return {
            "level": self._level_O.tolist(),
            "centre": self._centre_O.tolist(),
            "prompts_of_centre": self._prompts_O.tolist(),
            "prompts": self.table.arrays() if arrays else self.table.state_dict(),
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> LengthModel:
        """A model that goes on bit for bit; arrays in the state become its own.

        Raises:
            StateError: The state is damaged.
            KeyError, TypeError: It is no state.
        """
        model = cls()
        model._level_O = saved_numbers(state, "level", *_LEVELS, length=2)
        model._centre_O = saved_numbers(state, "centre", 0.0, length=2)
        model._prompts_O = saved_numbers(state, "prompts_of_centre", 0.0, cls.CENTRE_PROMPTS, length=2)
        model.table = model.table.restored(state["prompts"])
        return model


def _sums(group_R: np.ndarray, value_R: np.ndarray, num_groups: int) -> np.ndarray:
    """(P,) sum of each group's values."""
    return np.bincount(group_R, value_R, minlength=num_groups)
