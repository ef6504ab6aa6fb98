"""The noisy teacher of string-transform: it mistakes the rule, and then follows the one it named to the end.

For each of the 160 pairs of a letter and a first digit it has a reliability, and a favourite wrong rule. Where the
reliability is below one half that rule is its first choice, so reinforcement learning has to change the choice; how to
carry a rule out, it knows.

Array names end in their axes: `_K` letters of prompts, `_D` first digits, `_C` rules chosen, `_N` sequences, `_L` token
positions, `_V` vocabulary, `_M` problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coba_rl.tasks.base import Problem
from coba_rl.tasks.embedded import special_ids
from coba_rl.tasks.string_transform import DUE, MAX_LENGTH, MIN_LENGTH, RULES, StringTransform, apply_rules
from coba_rl.tasks.teacher import Batch, Teacher, shift_to_meet

_SPREAD = 2.5  # standard deviation of the reliabilities, in logits
_FAVOURITE = 0.9  # share of the errors that go to one wrong rule
_FIRST_RULE_ID = StringTransform.symbols.index(RULES[0])
_EQUALS_ID = StringTransform.symbols.index("=")
_PAD_ID, _EOS_ID = special_ids(StringTransform.symbols)

PASS_RATES = {"hard": 0.2}
"""Teacher's mean pass rate over the default training prompts, by regime."""


@dataclass(frozen=True, eq=False)
class StringTransformTeacher(Teacher):
    """A table of which rule is followed."""

    probability_KDC: np.ndarray
    """float64 (16, 10, 16): letter, first digit → distribution of the rule named and followed."""

    @classmethod
    def of_regime(cls, regime: str, seed: int) -> StringTransformTeacher:
        """Draw reliabilities and favourite errors, then shift all so that the mean pass rate is met.

        Args:
            regime: `hard`.
            seed: Seed of the draws.

        Raises:
            ConfigError: Unknown regime.

        Example:
            >>> StringTransformTeacher.of_regime("hard", seed=0).probability_KDC.shape
            (16, 10, 16)
        """
        problems = StringTransform(regime=regime).train_problems()
        rng = np.random.default_rng([seed, 2])
        size = len(RULES)
        logit_KD = _SPREAD * rng.standard_normal((size, 10))
        favourite_KD = (DUE + rng.integers(1, size, (size, 10))) % size

        def teacher_at(shift: float) -> StringTransformTeacher:
            return cls(_choice_probabilities(1 / (1 + np.exp(-(logit_KD + shift))), favourite_KD))

        shift = shift_to_meet(PASS_RATES[regime], lambda shift: teacher_at(shift).pass_rates(problems).mean())
        return teacher_at(shift)

    def pass_rates(self, problems: Sequence[Problem]) -> np.ndarray:
        """Chance that the rule that is due is followed for each problem, float64 (M,)."""
        letter = np.array([RULES.index(str(problem.prompt)[0]) for problem in problems], dtype=np.int64)
        first = np.array([int(str(problem.prompt)[1]) for problem in problems], dtype=np.int64)
        return self.probability_KDC[letter, first, DUE[letter, first]]

    def draw_batch(self, rng: np.random.Generator, num_sequences: int) -> Batch:
        """Draw random prompts and the teacher's answers.

        Args:
            rng: Source of randomness, advanced in place.
            num_sequences: N.

        Returns:
            Sequences of 2·8 + 3 positions; the end-of-sequence token is only a target.

        Example:
            >>> teacher = StringTransformTeacher.of_regime("hard", 0)
            >>> teacher.draw_batch(np.random.default_rng(0), 4).target_NLV.shape
            (4, 19, 29)
        """
        length_N = rng.integers(MIN_LENGTH, MAX_LENGTH + 1, num_sequences)
        letter_N = rng.integers(0, len(RULES), num_sequences)
        digits = rng.integers(0, 10, (num_sequences, MAX_LENGTH))
        choice_NC = self.probability_KDC[letter_N, digits[:, 0]]
        chosen_N = (
            (choice_NC.cumsum(axis=1) < rng.random((num_sequences, 1))).sum(axis=1).clip(max=len(RULES) - 1)
        )
        ids_NL = np.full((num_sequences, 2 * MAX_LENGTH + 3), _PAD_ID)
        target_NLV = np.zeros((*ids_NL.shape, _EOS_ID + 1), dtype=np.float32)
        ids_NL[:, 0] = _FIRST_RULE_ID + letter_N
        for length in range(MIN_LENGTH, MAX_LENGTH + 1):
            rows = np.flatnonzero(length_N == length)
            written = apply_rules(digits[rows, :length])[np.arange(len(rows)), chosen_N[rows]]
            ids_NL[rows, 1 : length + 1] = digits[rows, :length]
            ids_NL[rows, length + 1] = _EQUALS_ID
            ids_NL[rows, length + 2] = _FIRST_RULE_ID + chosen_N[rows]
            ids_NL[rows, length + 3 : 2 * length + 3] = written
            target_NLV[rows, length + 1, _FIRST_RULE_ID : _FIRST_RULE_ID + len(RULES)] = choice_NC[rows]
            target_NLV[rows[:, None], np.arange(length + 2, 2 * length + 2), written] = 1
            target_NLV[rows, 2 * length + 2, _EOS_ID] = 1
        return Batch(ids_NL, target_NLV)


def _choice_probabilities(right_KD: np.ndarray, favourite_KD: np.ndarray) -> np.ndarray:
    wrong_KD1 = 1 - right_KD[..., None]
    size = len(RULES)
    # All but two of the rules are neither due nor the favourite error.
    probability_KDC = np.repeat(wrong_KD1 * (1 - _FAVOURITE) / (size - 2), size, axis=-1)
    np.put_along_axis(probability_KDC, favourite_KD[..., None], wrong_KD1 * _FAVOURITE, axis=-1)
    np.put_along_axis(probability_KDC, DUE[..., None], right_KD[..., None], axis=-1)
    return probability_KDC
