"""Parts of one's own, wherever a part is named: a built-in name, or `"package.module:Name"`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from coba_rl.errors import CobaError, OptionError, suggestion


def find(
    name: str,
    built_in: Mapping[str, Any],
    *,
    kind: str,
    base: type | None = None,
    error: type[CobaError] = OptionError,
) -> Any:
    """What a name stands for.

    Args:
        name: A key of `built_in`, or `"package.module:Name"` for a part of one's own.
        built_in: The parts that come with the package; a value of the form `"package.module:Name"` is imported now.
        kind: What is looked for, for the messages: `strategy`, `estimator`, `solver`, `task`.
        base: The class that it must be a subclass of; None: anything that can be called.
        error: Raised where there is no such part.

    Raises:
        CobaError: Of the given class: not built in, not importable, or not of that kind.

    Example:
        >>> find("collections:OrderedDict", {}, kind="mapping", base=dict)
        <class 'collections.OrderedDict'>
        >>> find("fats", {"fast": print}, kind="solver")
        Traceback (most recent call last):
        coba_rl.errors.OptionError: Unknown solver 'fats'. Did you mean 'fast'? Known: fast. Your own: "package.module:Name".
    """
    if not isinstance(name, str):
        raise error(f'{kind}={name!r}: expected a name, "package.module:Name", or an object of that kind.')
    found = built_in.get(name)
    if found is None and ":" not in name:
        raise error(f'Unknown {kind} {name!r}. {suggestion(name, built_in)} Your own: "package.module:Name".')
    if found is None or isinstance(found, str):
        found = _imported(found or name, kind, error)
    if base is None and not callable(found):
        raise error(f"{kind.capitalize()} {name!r} cannot be called.")
    if base is not None and not (isinstance(found, type) and issubclass(found, base)):
        raise error(f"{kind.capitalize()} {name!r} is not a subclass of {base.__module__}.{base.__name__}.")
    return found


def _imported(name: str, kind: str, error: type[CobaError]) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as cause:
        raise error(f"{kind.capitalize()} {name!r} cannot be imported: {cause}.") from cause
