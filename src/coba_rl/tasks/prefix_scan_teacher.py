"""The noisy teacher of the prefix-scan task: right on some facts, wrong on others, in a stable way.

Each of the task's 600 one-step facts has its own reliability, spread around the reliability of its operator, and one
favourite wrong digit. Below a reliability of about one half that digit is the teacher's first choice, so reinforcement
learning has to flip it. The teacher goes on from its own running value, so an early error spoils what follows and
pass rates range from almost 0 to almost 1.

Array names end in their axes: `_F` facts as (operator, running value, operand), `_D` the digit written, `_M` problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coba_rl.tasks.base import Problem
from coba_rl.tasks.embedded import special_ids
from coba_rl.tasks.prefix_scan import MAX_OPERATORS, OPERATORS, PrefixScan
from coba_rl.tasks.teacher import Batch, Teacher, shift_to_meet

_SPREAD = 1.2  # standard deviation of the facts' reliabilities around their operator's, in logits
_FAVOURITE = 0.9  # share of a fact's errors that go to one wrong digit
_FIRST_OPERATOR_ID = PrefixScan.symbols.index("+")
_EQUALS_ID = PrefixScan.symbols.index("=")
_PAD_ID, _EOS_ID = special_ids(PrefixScan.symbols)


@dataclass(frozen=True)
class Regime:
    """How much a policy knows before reinforcement learning."""

    reliability: dict[str, float]
    """Operator → chance of a right step, before the common shift that meets `pass_rate`."""
    pass_rate: float
    """Teacher's mean pass rate over the default training prompts."""


REGIME_SETTINGS: dict[str, Regime] = {
    "hard": Regime({"+": 0.80, ">": 0.85, "<": 0.65, "-": 0.50, "*": 0.35, "@": 0.25}, 0.14),
    "heterogeneous": Regime({"+": 0.90, ">": 0.90, "<": 0.75, "-": 0.55, "*": 0.40, "@": 0.15}, 0.16),
    "moderate": Regime({"+": 0.90, ">": 0.92, "<": 0.85, "-": 0.75, "*": 0.60, "@": 0.45}, 0.34),
}


@dataclass(frozen=True, eq=False)
class PrefixScanTeacher(Teacher):
    """A table of what is written for each fact."""

    probability_FD: np.ndarray
    """float64 (6, 10, 10, 10): operator, running value, operand → distribution of the digit written."""

    @classmethod
    def of_regime(cls, regime: str, seed: int) -> PrefixScanTeacher:
        """Draw the facts' reliabilities and favourite errors, then shift all so that the mean pass rate is met.

        Args:
            regime: `hard`, `heterogeneous` or `moderate`.
            seed: Seed of the draws.

        Raises:
            ConfigError: Unknown regime.

        Example:
            >>> PrefixScanTeacher.of_regime("hard", seed=0).probability_FD.shape
            (6, 10, 10, 10)
        """
        fact, start_M = _facts(PrefixScan(regime=regime).train_problems())
        settings = REGIME_SETTINGS[regime]
        rng = np.random.default_rng([seed, 2])
        centre = np.array([settings.reliability[operator] for operator in OPERATORS])
        logit_F = np.log(centre / (1 - centre))[:, None, None] + _SPREAD * rng.standard_normal((6, 10, 10))
        truth_F = _true_digits()
        favourite_F = (truth_F + rng.integers(1, 10, truth_F.shape)) % 10

        def teacher_at(shift: float) -> PrefixScanTeacher:
            return cls(_write_probabilities(logit_F + shift, truth_F, favourite_F))

        def mean_at(shift: float) -> float:
            return teacher_at(shift)._products(fact, start_M).mean()

        return teacher_at(shift_to_meet(settings.pass_rate, mean_at))

    def pass_rates(self, problems: Sequence[Problem]) -> np.ndarray:
        """Chance that every step of each problem is right.

        Args:
            problems: M prefix-scan problems.

        Returns:
            float64 (M,), each in [0, 1].
        """
        return self._products(*_facts(problems))

    def draw_batch(self, rng: np.random.Generator, num_sequences: int) -> Batch:
        """Draw random prompts and the teacher's answers, with the distribution it wrote each digit from.

        Args:
            rng: Source of randomness, advanced in place.
            num_sequences: N.

        Returns:
            Sequences of 3·8 + 2 positions; the end-of-sequence token is only a target.

        Example:
            >>> batch = PrefixScanTeacher.of_regime("hard", 0).draw_batch(np.random.default_rng(0), 4)
            >>> batch.ids_NL.shape, batch.target_NLV.shape
            ((4, 26), (4, 26, 19))
        """
        rows = np.arange(num_sequences)
        length_N = rng.integers(1, MAX_OPERATORS + 1, num_sequences)
        digits = rng.integers(0, 10, (num_sequences, MAX_OPERATORS + 1))
        operators = rng.integers(0, len(OPERATORS), (num_sequences, MAX_OPERATORS))
        uniform = rng.random((num_sequences, MAX_OPERATORS))
        ids_NL = np.full((num_sequences, 3 * MAX_OPERATORS + 2), _PAD_ID)
        target_NLV = np.zeros((*ids_NL.shape, _EOS_ID + 1), dtype=np.float32)
        equals_N = 2 * length_N + 1  # position of "="
        ids_NL[rows, equals_N] = _EQUALS_ID
        ids_NL[:, 0] = digits[:, 0]
        value_N = digits[:, 0].copy()
        for step in range(MAX_OPERATORS):
            live = rows[step < length_N]
            operator, operand = operators[live, step], digits[live, step + 1]
            ids_NL[live, 2 * step + 1] = _FIRST_OPERATOR_ID + operator
            ids_NL[live, 2 * step + 2] = operand
            distribution = self.probability_FD[operator, value_N[live], operand]
            written = (distribution.cumsum(axis=1) < uniform[live, step, None]).sum(axis=1).clip(max=9)
            target_NLV[live, equals_N[live] + step, :10] = distribution
            ids_NL[live, equals_N[live] + step + 1] = written
            value_N[live] = written
        target_NLV[rows, equals_N + length_N, _EOS_ID] = 1
        return Batch(ids_NL, target_NLV)

    def _products(self, fact: np.ndarray, start_M: np.ndarray) -> np.ndarray:
        right_F = np.take_along_axis(self.probability_FD, _true_digits()[..., None], axis=-1)
        return np.multiply.reduceat(right_F.ravel()[fact], start_M) if len(start_M) else np.ones(0)


def _facts(problems: Sequence[Problem]) -> tuple[np.ndarray, np.ndarray]:
    """Flat index of every step's fact, problem after problem, and where each problem starts (M,)."""
    operators, facts, starts = list(OPERATORS), [], []
    for problem in problems:
        starts.append(len(facts))
        prompt = str(problem.prompt)
        for step, value in enumerate(prompt[0] + problem.answer[:-1]):
            operator, operand = operators.index(prompt[2 * step + 1]), int(prompt[2 * step + 2])
            facts.append(100 * operator + 10 * int(value) + operand)
    return np.array(facts, dtype=np.int64), np.array(starts, dtype=np.int64)


def _true_digits() -> np.ndarray:
    """Right digit of every fact, int64 (6, 10, 10)."""
    digits = range(10)
    return np.array([[[f(a, b) % 10 for b in digits] for a in digits] for f in OPERATORS.values()])


def _write_probabilities(logit_F: np.ndarray, truth_F: np.ndarray, favourite_F: np.ndarray) -> np.ndarray:
    right_F1 = 1 / (1 + np.exp(-logit_F))[..., None]
    wrong_F1 = 1 - right_F1
    # Eight digits are neither right nor the favourite error.
    probability_FD = np.repeat(wrong_F1 * (1 - _FAVOURITE) / 8, 10, axis=-1)
    np.put_along_axis(probability_FD, favourite_F[..., None], wrong_F1 * _FAVOURITE, axis=-1)
    np.put_along_axis(probability_FD, truth_F[..., None], right_F1, axis=-1)
    return probability_FD
