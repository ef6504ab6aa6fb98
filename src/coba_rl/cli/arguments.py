"""Types of the commands' arguments, so that every command reads a number in the same way."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


def _whole(least: int, most: int) -> Parameter:
    """Reads a whole number within bounds; a fraction is refused rather than rounded."""

    def convert(_: Any, tokens: Sequence[Token]) -> int:
        text = tokens[0].value
        number = int(text) if _WHOLE.fullmatch(text) else least - 1
        if not least <= number <= most:
            raise ValueError(f"{text!r}, expected a whole number from {least} to {most}.")
        return number

    return Parameter(converter=convert)


Count = Annotated[int, _whole(1, 2**31 - 1)]
"""How many, at least one."""
Seed = Annotated[int, _whole(0, 2**32 - 1)]
"""Of random generators; NumPy's and Python's all take it."""


def parse_overrides(overrides: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Read the values of `--section.key VALUE` as TOML; what is not TOML is text.

    Example:
        >>> parse_overrides({"allocation": {"kappa": "15", "strategy": "coba", "estimator": '{name = "drift"}'}})
        {'allocation': {'kappa': 15, 'strategy': 'coba', 'estimator': {'name': 'drift'}}}
    """
    return {
        section: {key: _parse_value(text) for key, text in keys.items()}
        for section, keys in overrides.items()
    }


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
