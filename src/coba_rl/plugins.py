"""Parts of one's own, wherever a part is named: a built-in name, or `"package.module:Name"`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from coba_rl.errors import CobaError, OptionError, suggestion
from coba_rl.option_types import check_types


def make(
    given: Any,
    built_in: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    kind: str,
    base: type,
    error: type[CobaError] = OptionError,
) -> Any:
    """An object of a class that is named, built with its options; or the object that is given itself.

    Args:
        given: As `name` of `find`, or an object of `base`, which has its options already.
        built_in, kind, base, error: As for `find`.
        options: Fields of the class, a dataclass, by name.

    Raises:
        CobaError: Of the given class: there is no such part.
        OptionError: An option that the part does not have, a value it cannot take, or options beside an object.

    Example:
        >>> from coba_rl.tasks import TASKS, Task
        >>> make("prefix-scan", TASKS, {"regme": "hard"}, kind="task", base=Task)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coba_rl.errors.OptionError: Task 'prefix-scan' has no option 'regme'. Did you mean 'regime'? Known: graded, ...
    """
    if isinstance(given, base):
        if options:
            raise OptionError(
                f"options {sorted(options)} were given beside a {base.__name__} object: set them on it."
            )
        return given
    cls = find(given, built_in, kind=kind, base=base, error=error)
    known = [field.name for field in fields(cls)] if is_dataclass(cls) else []
    for option in options:
        if option not in known:
            raise OptionError(
                f"{kind.capitalize()} {given!r} has no option {option!r}. {suggestion(option, known)}"
            )
    check_types(cls, options)
    return cls(**options)


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
        raise error(f'{kind}={name!r}: expected a name, "package.module:Name", or an object (an instance).')
    found = built_in.get(name)
    if found is None and ":" not in name:
        raise error(f'Unknown {kind} {name!r}. {suggestion(name, built_in)} Your own: "package.module:Name".')
    if found is None or isinstance(found, str):
        found = _imported(found or name, kind, error)
    if base is None and not callable(found):
        raise error(f"{kind.capitalize()} {name!r} cannot be called.")
    if base is not None and not (isinstance(found, type) and issubclass(found, base)):
        raise error(f"{kind.capitalize()} {name!r} is not a subclass of {base.__module__}.{base.__name__}.")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise error(f"{kind.capitalize()} {name!r} does not define {', '.join(missing)}.")
    return found


def reference(part: Any, built_in: Mapping[str, Any]) -> str:
    """The name under which `find` finds a class or a function again.

    Example:
        >>> from collections import OrderedDict
        >>> reference(OrderedDict, {}), reference(print, {"fast": print})
        ('collections:OrderedDict', 'fast')
    """
    name = next((name for name, known in built_in.items() if known is part), None)
    return name or f"{part.__module__}:{part.__qualname__}"


def _imported(name: str, kind: str, error: type[CobaError]) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as cause:
        raise error(f"{kind.capitalize()} {name!r} cannot be imported: {cause}.") from cause
