"""How good a model is and how sure that is: avg@k, pass@k, intervals, paired differences, difficulty transitions.

Array names end in their axes: `_P` prompts, `_K` attempts at one prompt. A NaN is an attempt that could not be judged;
it counts neither as a success nor as an attempt. Every average is over prompts first, so that a prompt weighs the same
whatever number of its attempts could be judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coba_rl.allocation.success import graded, reached
from coba_rl.records import Estimate

DIFFICULTY_CLASSES = ("0", "(0, 0.2]", "(0.2, 0.8)", "[0.8, 1)", "1")
"""Intervals of the pass rate, hardest first."""

_EDGE = 1e-9
_RESAMPLED_VALUES = 2_000_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of sampling every prompt several times."""

    avg: Estimate
    """avg@k: chance that one attempt at a random prompt succeeds."""
    pass_at: dict[int, Estimate]
    """pass@k: chance that at least one of k attempts succeeds, by k = 1, 2, 4, …"""
    num_prompts: int
    """Prompts with at least one judged attempt; the others are left out."""
    num_samples: int
    """Attempts at a prompt."""
    num_unjudged: int
    """Attempts that could not be judged."""

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON: `avg@16`, `pass@1`, … with their intervals, and the counts."""
        return {
            f"avg@{self.num_samples}": self.avg.as_dict(),
            **{f"pass@{k}": estimate.as_dict() for k, estimate in self.pass_at.items()},
            "num_prompts": self.num_prompts,
            "num_samples": self.num_samples,
            "num_unjudged": self.num_unjudged,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Prompts by difficulty class before (rows) and after (columns), in the order of `DIFFICULTY_CLASSES`."""

    counts: npt.NDArray[np.int64]
    """Shape (5, 5)."""

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Where the prompts of each class went, shape (5, 5): rows sum to 1, or are NaN for a class without prompts."""
        totals = self.counts.sum(axis=1, keepdims=True)
        return np.where(totals > 0, self.counts / np.maximum(totals, 1), np.nan)


def prompt_accuracy(successes_PK: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Mean success of each prompt over its judged attempts.

    Args:
        successes_PK: Shape (P, K), in [0, 1]; NaN for an attempt that could not be judged.

    Returns:
        Shape (P,); NaN for a prompt without a judged attempt.

    Example:
        >>> prompt_accuracy([[1, 0], [1, float("nan")], [float("nan")] * 2]).tolist()
        [0.5, 1.0, nan]
    """
    successes = np.asarray(successes_PK, dtype=np.float64)
    num_judged = (~np.isnan(successes)).sum(axis=1)
    return np.where(num_judged > 0, np.nansum(successes, axis=1) / np.maximum(num_judged, 1), np.nan)


def pass_at_k(successes_P: npt.ArrayLike, attempts_P: npt.ArrayLike, k: int) -> npt.NDArray[np.float64]:
    """Chance that at least one of k attempts succeeds, without bias, from n ≥ k attempts of which c succeeded.

    pass@k = 1 − C(n−c, k) / C(n, k) = 1 − ∏_{i=n−c+1}^{n} (1 − k/i). The product needs no large binomials.

    Args:
        successes_P: c, shape (P,), whole numbers in [0, n].
        attempts_P: n, shape (P,) or one number for all, whole numbers ≥ k.
        k: Attempts allowed, ≥ 1.

    Returns:
        One value a prompt, shape (P,), in [0, 1].

    Raises:
        ValueError: Counts that are no whole numbers or out of range, or fewer than k attempts.

    Example:
        >>> pass_at_k([0, 1, 4], 4, k=2).tolist()
        [0.0, 0.5, 1.0]

    References:
        Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, equation 1.
    """
    successes, attempts = np.broadcast_arrays(np.atleast_1d(successes_P), np.atleast_1d(attempts_P))
    valid = (successes == np.floor(successes)) & (attempts == np.floor(attempts)) & (successes >= 0)
    if not np.all(valid & (successes <= attempts)):
        raise ValueError(
            f"successes {successes_P!r} of attempts {attempts_P!r}: expected whole numbers with 0 ≤ successes ≤ attempts."
        )
    if k != int(k) or not 1 <= k <= attempts.min(initial=k):
        raise ValueError(
            f"k={k!r} with {int(attempts.min(initial=k))} attempts at some prompt: expected a whole number from 1 to the "
            "fewest attempts; sample more or lower k."
        )
    pairs = zip(successes.astype(int).tolist(), attempts.astype(int).tolist(), strict=True)
    return np.array([1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)) for c, n in pairs])


def mean_estimate(values_P: npt.ArrayLike, *, seed: int = 0, num_resamples: int = 2000) -> Estimate:
    """Mean over prompts with a 95 % bootstrap interval (percentiles of the means of resampled prompts).

    The interval covers what another draw of prompts from the same population, with its own attempts, would change. It
    does not cover training again with another seed, nor prompts of another kind; with fewer than about 20 prompts, or
    values that are nearly all alike, it is too narrow.

    Args:
        values_P: One value a prompt, shape (P,), finite.
        seed: Of the resampling; the same values and seed give the same interval.
        num_resamples: Bootstrap samples.

    Raises:
        ValueError: No values, a value that is not finite, or no resamples.

    Example:
        >>> estimate = mean_estimate([0.0, 1.0] * 50)
        >>> estimate.value, 0.39 < estimate.low < 0.42, 0.58 < estimate.high < 0.61
        (0.5, True, True)
    """
    values = np.asarray(values_P, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all() or num_resamples < 1:
        raise ValueError(
            f"values of shape {values.shape} and num_resamples={num_resamples!r}: expected at least one finite value a "
            "prompt in one dimension, and at least one resample."
        )
    if values.size == 1:
        return Estimate(float(values[0]), np.nan, np.nan)
    rng = np.random.default_rng(seed)
    means = np.empty(num_resamples)
    step = max(1, _RESAMPLED_VALUES // values.size)
    for start in range(0, num_resamples, step):
        shape = (min(step, num_resamples - start), values.size)
        means[start : start + step] = values[rng.integers(values.size, size=shape)].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high))


def paired_difference(a_P: npt.ArrayLike, b_P: npt.ArrayLike, *, seed: int = 0) -> Estimate:
    """Mean of a − b over the same prompts, positive where a is better, with its 95 % interval.

    Pairing takes away what makes a prompt hard for both, so it shows smaller differences than two intervals can.

    Args:
        a_P: One value a prompt, shape (P,).
        b_P: The same for the other model, same prompts in the same order.
        seed: Of the resampling.

    Raises:
        ValueError: Different shapes, or as in `mean_estimate`.

    Example:
        >>> paired_difference([0.5, 0.9, 0.3], [0.25, 0.65, 0.05])
        Estimate(value=0.25, low=0.25, high=0.25)
    """
    a, b = np.asarray(a_P, dtype=np.float64), np.asarray(b_P, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"shapes {a.shape} and {b.shape}: expected one value a prompt for the same prompts in both."
        )
    return mean_estimate(a - b, seed=seed)


def difficulty_classes(pass_rates_P: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Index into `DIFFICULTY_CLASSES` of each pass rate.

    Example:
        >>> difficulty_classes([0, 0.2, 0.5, 0.8, 1]).tolist()
        [0, 1, 2, 3, 4]
    """
    rates = np.asarray(pass_rates_P, dtype=np.float64)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise ValueError(f"pass rates {pass_rates_P!r}: expected numbers in [0, 1] without NaN.")
    # Averages of decimals miss the edges by a rounding error: 0.2 belongs to (0, 0.2], 0.8 to [0.8, 1).
    edges = [_EDGE, 0.2 + _EDGE, 0.8 - _EDGE, 1 - _EDGE]
    return np.searchsorted(edges, rates, side="right").astype(np.int64)


def difficulty_transitions(before_P: npt.ArrayLike, after_P: npt.ArrayLike) -> Transitions:
    """How many prompts went from each difficulty class to each other one.

    Args:
        before_P: Pass rates before training, shape (P,), in [0, 1].
        after_P: Pass rates of the same prompts after it.

    Raises:
        ValueError: Different shapes, or a pass rate outside [0, 1].

    Example:
        >>> difficulty_transitions([0.0, 0.0, 0.5], [0.0, 0.1, 1.0]).shares[0].tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0]
    """
    before, after = difficulty_classes(before_P), difficulty_classes(after_P)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(
            f"shapes {before.shape} and {after.shape}: expected one pass rate a prompt for the same prompts."
        )
    counts = np.zeros((5, 5), dtype=np.int64)
    np.add.at(counts, (before, after), 1)
    return Transitions(counts)


def summarize(successes_PK: npt.ArrayLike, *, threshold: float = 1.0, seed: int = 0) -> Evaluation:
    """avg@K, and pass@k for k = 1, 2, 4, … up to the attempts that every prompt has, with intervals.

    Args:
        successes_PK: Shape (P, K), in [0, 1]; NaN for an attempt that could not be judged.
        threshold: Least graded success that counts as solved in pass@k.
        seed: Of the intervals.

    Raises:
        ValueError: Wrong shape, a success outside [0, 1], or no judged attempt at all.

    Example:
        >>> result = summarize([[1, 0], [0, 0], [1, 1], [1, 0]])
        >>> result.avg.value, {k: estimate.value for k, estimate in result.pass_at.items()}
        (0.5, {1: 0.5, 2: 0.75})
    """
    successes = _as_successes(successes_PK)
    judged = ~np.isnan(successes)
    kept = judged.any(axis=1)
    attempts = judged.sum(axis=1)[kept]
    solved = reached(successes, threshold).sum(axis=1)[kept]
    ks = [2**power for power in range(int(attempts.min()).bit_length())]
    return Evaluation(
        avg=mean_estimate(prompt_accuracy(successes)[kept], seed=seed),
        pass_at={k: mean_estimate(pass_at_k(solved, attempts, k), seed=seed) for k in ks},
        num_prompts=int(kept.sum()),
        num_samples=successes.shape[1],
        num_unjudged=int((~judged).sum()),
    )


def _as_successes(successes_PK: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        successes = graded(successes_PK)
        if successes.ndim == 2 and not np.isnan(successes).all():
            return successes
        problem = f"the shape {successes.shape} with {(~np.isnan(successes)).sum()} judged attempts"
    except ValueError as error:
        problem = str(error)
    raise ValueError(
        f"successes: {problem}; expected shape (prompts, attempts), values in [0, 1] and at least one that is not NaN."
    )
