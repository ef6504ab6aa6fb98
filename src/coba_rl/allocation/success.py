"""Numbers that say how well a rollout did, read as what they were before rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

_ROUNDING = 1e-6
"""Relative error of a sum of a few float32 numbers, as hosts keep their rewards."""


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
