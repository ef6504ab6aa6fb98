"""Estimators of pass rates, one a file, and how they are found by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coba_rl import plugins
from coba_rl.allocation.estimators.ability import AbilityEstimator
from coba_rl.allocation.estimators.base import PassRateEstimator, Visits
from coba_rl.allocation.estimators.drift import DriftEstimator
from coba_rl.allocation.estimators.posterior import PosteriorEstimator
from coba_rl.allocation.estimators.window import WindowEstimator
from coba_rl.errors import OptionError

ESTIMATORS: dict[str, type[PassRateEstimator]] = {
    "window": WindowEstimator,
    "posterior": PosteriorEstimator,
    "drift": DriftEstimator,
    "ability": AbilityEstimator,
}
"""The built-in estimators by name."""

__all__ = ["ESTIMATORS", "PassRateEstimator", "Visits", "describe_estimator", "make_estimator"]


def make_estimator(
    estimator: str | Mapping[str, Any] | PassRateEstimator, /, **options: Any
) -> PassRateEstimator:
    """An estimator from what a configuration says of it; an object is returned as it is.

    Args:
        estimator: Name of a built-in estimator, `"package.module:Class"`, a table of such a `name` and options, or a
            `PassRateEstimator` object.
        **options: Options of the estimator, see its fields.

    Raises:
        OptionError: No such estimator, an option that it does not have, a value it cannot take, or options beside an
            object.

    Example:
        >>> make_estimator({"name": "posterior", "decay": 0.9}).estimate(["never seen"]).tolist()
        [0.5]
    """
    if isinstance(estimator, Mapping):
        if "name" not in estimator:
            raise OptionError(
                f'estimator={dict(estimator)!r}: expected a table with a name, e.g. {{name = "posterior", decay = 0.5}}.'
            )
        options = {**estimator, **options}
        estimator = options.pop("name")
    return plugins.make(estimator, ESTIMATORS, options, kind="estimator", base=PassRateEstimator)


def describe_estimator(estimator: PassRateEstimator) -> str | dict[str, Any]:
    """What `make_estimator` makes one like it of, JSON-able: a name, with all options if it has any.

    Example:
        >>> describe_estimator(AbilityEstimator()), describe_estimator(WindowEstimator())
        ({'name': 'ability', 'guess_rate': 0.0}, {'name': 'window', 'visits': 1})
    """
    name, options = plugins.reference(type(estimator), ESTIMATORS), estimator.options()
    return {"name": name, **options} if options else name
