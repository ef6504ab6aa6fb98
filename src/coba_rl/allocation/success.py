"""Numbers that say how well a rollout did, read as what they were before rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ROUNDING = 1e-6
"""Relative error of a sum of a few float32 numbers, as hosts keep their rewards."""


def as_success(scores: Any, threshold: float | None) -> np.ndarray:
    """(R,) success of each rollout in [0, 1], by the threshold if there is one; NaN is no attempt.

    Args:
        scores: (R,) what the verifier said; None or NaN is no attempt.
        threshold: The score from which on a rollout succeeds; None: scores are graded success.

    Raises:
        ValueError: Not one number a rollout; or, without a threshold, one outside [0, 1] by more than rounding.
    """
    if not isinstance(scores, np.ndarray) or scores.dtype == object:
        scores = np.array([math.nan if value is None else value for value in scores], dtype=float)
    if scores.ndim != 1:
        raise ValueError(f"successes have the shape {scores.shape}: expected one number a rollout.")
    if threshold is not None:
        return np.where(np.isnan(scores), np.nan, reached(scores, threshold))
    try:
        return graded(scores)
    except ValueError as error:
        raise ValueError(
            f"success {error}: expected 0/1 or a graded success. For rewards on another scale set success_threshold."
        ) from None


def graded(values: Any) -> np.ndarray:
    """Numbers in [0, 1]; those outside it by rounding become 0 or 1.

    Args:
        values: Numbers of any shape; NaN stays NaN. A NumPy array of float16 may be off by that type's rounding.

    Raises:
        ValueError: A number outside [0, 1]; it is named.

    Example:
        >>> graded([1.0000001, -1e-8, 0.5]).tolist()
        [1.0, 0.0, 0.5]
    """
    given = np.asarray(values, dtype=float)
    rounding = _rounding(values)
    outside = (given < -rounding) | (given > 1.0 + rounding)
    if outside.any():
        raise ValueError(f"{float(given[outside][0])!r} lies outside [0, 1]")
    return np.clip(given, 0.0, 1.0)


def reached(values: Any, threshold: float) -> np.ndarray:
    """Whether each number is at least the threshold, up to rounding.

    Args:
        values: As for `graded`.
        threshold: A finite number. Rounding is relative to it: 0 is met by no number below 0.

    Example:
        >>> reached(np.float32([0.9, 0.8999]), 0.9).tolist()
        [True, False]
    """
    return np.asarray(values, dtype=float) >= threshold - _rounding(values) * abs(threshold)


def _rounding(values: Any) -> float:
    kind = getattr(values, "dtype", None)
    coarse = isinstance(kind, np.dtype) and kind.kind == "f"
    return max(_ROUNDING, float(np.finfo(kind).eps)) if coarse else _ROUNDING
