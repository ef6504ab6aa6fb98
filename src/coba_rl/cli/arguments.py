"""Types of the commands' arguments, so that every command reads a number in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
MAX_SEED = 2**32 - 1
"""The largest that NumPy's and Python's generators all take."""


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
Seed = Annotated[int, _whole(0, MAX_SEED)]
"""Of random generators."""
