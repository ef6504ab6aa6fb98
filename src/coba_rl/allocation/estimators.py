"""The pass-rate estimators by name."""

from __future__ import annotations

from typing import Any

from coba_rl.allocation.ability import AbilityEstimator
from coba_rl.allocation.pass_rates import (
    DriftEstimator,
    PassRateEstimator,
    PosteriorEstimator,
    WindowEstimator,
)
from coba_rl.errors import OptionError, suggestion

ESTIMATORS: dict[str, type[PassRateEstimator]] = {
    "window": WindowEstimator,
    "posterior": PosteriorEstimator,
    "drift": DriftEstimator,
    "ability": AbilityEstimator,
}
"""Estimators by name."""

ESTIMATOR_OPTIONS: dict[str, tuple[str, ...]] = {
    "window": ("visits",),
    "posterior": ("prior", "decay"),
    "drift": ("prior", "decay"),
    "ability": (),
}
"""The options each estimator takes."""


def make_estimator(name: str, **options: Any) -> PassRateEstimator:
    """Build an estimator; options that are None keep their defaults.

    Raises:
        OptionError: Unknown estimator, or an option that it does not use.
    """
    if name not in ESTIMATORS:
        raise OptionError(f"Unknown estimator {name!r}. {suggestion(name, ESTIMATORS)}")
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option not in ESTIMATOR_OPTIONS[name]:
            raise OptionError(
                f"{option}={value!r} has no effect with estimator={name!r}, which takes "
                f"{', '.join(ESTIMATOR_OPTIONS[name]) or 'no options'}. Remove it or choose another estimator."
            )
    return ESTIMATORS[name](**given)
