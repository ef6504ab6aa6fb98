"""Whether the options of a part hold values of the types that its fields are annotated with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from coba_rl.errors import OptionError


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    float: ("a finite number", lambda v: _is_number(v) and math.isfinite(v)),
    str: ("text", lambda v: isinstance(v, str)),
    bool: ("true or false", lambda v: isinstance(v, bool)),
    dict: ("a table", lambda v: isinstance(v, Mapping)),
    Callable: ("a function", callable),
    NoneType: ("None", lambda v: v is None),
}


class WithOptions:
    """A dataclass whose fields are its options: what strategies and estimators have in common."""

    def validate(self) -> None:
        """Check the options; raise `OptionError`. Subclasses extend it."""
        check_types(type(self), {field.name: getattr(self, field.name) for field in fields(self)})  # ty: ignore[invalid-argument-type]

    def options(self) -> dict[str, Any]:
        """Every option and its value, JSON-able."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # ty: ignore[invalid-argument-type]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def require(condition: bool, option: str, value: Any, expected: str) -> None:
    """Raise `OptionError` about an option unless `condition` holds."""
    if not condition:
        raise OptionError(f"{option}={value!r}: expected {expected}.")


def check_types(cls: type, values: Mapping[str, Any]) -> None:
    """Raise `OptionError` unless each value is of the type that the class annotates the field of that name with.

    Annotations count the same whether Python has resolved them or kept them as text.

    Example:
        >>> class Ramp:
        ...     steps: int
        >>> check_types(Ramp, {"steps": 2.5})
        Traceback (most recent call last):
        coba_rl.errors.OptionError: steps=2.5: expected a whole number.
    """
    try:
        hints = get_type_hints(cls)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise OptionError(
            f"The type of an option of {cls.__name__} cannot be resolved ({error}): annotate it with types that "
            "its module knows at run time, not under TYPE_CHECKING alone."
        ) from error
    for name, value in values.items():
        if not _matches(value, hints[name]):
            raise OptionError(f"{name}={value!r}: expected {_describe(hints[name])}.")


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value is of the annotated type; a list will do for a tuple, as in JSON and TOML."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _KINDS:
        return _KINDS[hint][1](value)
    if origin in (Union, UnionType):
        return any(_matches(value, argument) for argument in arguments)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is tuple and ... not in arguments:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(arguments)
            and all(map(_matches, value, arguments))
        )
    if origin in (tuple, list):
        return isinstance(value, (tuple, list)) and all(_matches(item, arguments[0]) for item in value)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _KINDS:
        return _KINDS[hint][0]
    if origin in (Union, UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin is tuple and ... not in arguments:
        return f"({', '.join(_describe(argument) for argument in arguments)})"
    if origin in (tuple, list):
        return f"a list, each {_describe(arguments[0])}"
    return getattr(hint, "__name__", str(hint))
