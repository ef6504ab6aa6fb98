"""Types of the commands' arguments, so that every command reads a number in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
MAX_SEED = 2**32 - 1
"""The largest that NumPy's and Python's generators all take."""


def _whole(least: int, most: int | None = None) -> Parameter:
    """Reads a whole number within bounds; a fraction is refused rather than rounded."""
    expected = f"a whole number of at least {least}" + (f" and at most {most}" if most is not None else "")

    def convert(_: Any, tokens: Sequence[Token]) -> int:
        text = tokens[0].value
        number = int(text) if _WHOLE.fullmatch(text) else least - 1
        if number < least or (most is not None and number > most):
            raise ValueError(f"{text!r}, expected {expected}.")
        return number

    return Parameter(converter=convert)


Count = Annotated[int, _whole(1)]
"""How many, at least one."""
Seed = Annotated[int, _whole(0, MAX_SEED)]
"""Of random generators."""
