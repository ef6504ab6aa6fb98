"""What a run learned for its tokens: held-out accuracy, linear between measurements, over all tokens generated so far.

A run that ended before the tokens asked for counts with its last accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coba_rl.lab.result import LabResult

COLLAPSE = 0.2
"""Share of held-out accuracy by which a run may fall below its own best; one that ends lower has collapsed."""


def curve_over_tokens(record: LabResult) -> tuple[np.ndarray, np.ndarray]:
    """(X,) tokens generated until each measurement, from 0 on; (X,) held-out accuracy."""
    step_X, accuracy_X = (np.array(column) for column in zip(*record.curve, strict=True))
    return record.tokens_by_step[step_X].astype(float), accuracy_X.astype(float)


def shared_tokens(records: Sequence[LabResult]) -> int:
    """Tokens at which runs can be compared: those they were to generate, or the fewest that one of them did."""
    return min(record.config.tokens or record.tokens for record in records)


def accuracy_at(record: LabResult, tokens: float) -> float:
    """Held-out accuracy after so many tokens."""
    return float(np.interp(tokens, *curve_over_tokens(record)))


def mean_accuracy(record: LabResult, tokens: float) -> float:
    """Area under the curve from 0 to so many tokens, divided by them."""
    spent_X, accuracy_X = curve_over_tokens(record)
    inside = spent_X < tokens
    end = accuracy_at(record, tokens)
    return float(np.trapezoid([*accuracy_X[inside], end], [*spent_X[inside], tokens]) / tokens)


def tokens_to(record: LabResult, accuracy: float) -> float:
    """Tokens until held-out accuracy was first as high as this; infinite if it never was."""
    spent_X, accuracy_X = curve_over_tokens(record)
    reached = np.flatnonzero(accuracy_X >= accuracy)
    if not len(reached):
        return np.inf
    last = slice(max(reached[0] - 1, 0), reached[0] + 1)
    return float(np.interp(accuracy, accuracy_X[last], spent_X[last]))


def has_collapsed(record: LabResult) -> bool:
    """Whether a run ends more than `COLLAPSE` below its own best, or below where it began."""
    _, accuracy_X = curve_over_tokens(record)
    return bool(accuracy_X[-1] < max(accuracy_X.max() - COLLAPSE, accuracy_X[0]))
