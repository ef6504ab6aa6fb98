r"""Read a ground truth out of a column: an answer, a worked solution that holds one, or a value stored as text."""

from __future__ import annotations

import ast
import json
import re
from decimal import Decimal
from typing import Any

from coba_rl.tasks.math_extract import extract_answer

_KEYS = ("ground_truth", "final_answer", "answer", "value", "target", "solution")
"""Where a dictionary holds its answer; the first that is there wins."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
"""A word of prose; a LaTeX command is none."""
_STORED = re.compile(r"\[\s*[\"'].*[\"']\s*\]|\[\s*[+-]?[0-9.]+\s*\]|\{\s*[\"'].*\}", re.DOTALL)
"""A list of texts or of one number, or a dictionary, written as text; `[1, 2]` is an interval."""
_WHOLE = re.compile(r"^([+-]?[0-9]+)\.0+$")
"""A whole number stored as a float, which would read as approximate."""
_MARK = "####"
"""Stands before the answer of a worked solution in GSM8K."""


def read_gold(value: Any, *, is_solution: bool = False) -> str:
    r"""The answer that a value of an answer column holds.

    Args:
        value: Text, a number, a list of answers, or a dictionary that holds one of these.
        is_solution: The column is for worked solutions: prose without a marked answer is none.

    Returns:
        The answer as text; empty where there is none.

    Example:
        >>> read_gold("He has 8 * 9 = 72 left. #### 72"), read_gold("The answer is 5."), read_gold(r"So \boxed{\pi}.")
        ('72', '5', '\\pi')
        >>> read_gold('["34"]'), read_gold("{'ground_truth': 0.5}"), read_gold([1.0, -2]), read_gold(1e-05)
        ('34', '0.5', '1, -2', '0.00001')
        >>> read_gold("Left to the reader.", is_solution=True), read_gold("no solution"), read_gold(None)
        ('', 'no solution', '')
    """
    if isinstance(value, dict):
        value = next((value[key] for key in _KEYS if value.get(key) is not None), None)
        return read_gold(value, is_solution=is_solution)
    if isinstance(value, list | tuple):
        return ", ".join(
            text for text in (read_gold(part, is_solution=is_solution) for part in value) if text
        )
    if isinstance(value, str):
        return _from_text(value.strip(), is_solution)
    if isinstance(value, float | Decimal):
        return _from_number(value)
    return "" if value is None else str(value)


def _from_text(text: str, is_solution: bool) -> str:
    if _STORED.fullmatch(text):
        stored = _stored(text)
        if stored is not None:
            return read_gold(stored, is_solution=is_solution)
    if _MARK in text:
        return text.rpartition(_MARK)[2].strip()
    marked = extract_answer(text)
    if marked is not None:
        return marked.removesuffix(".")
    if is_solution and _WORD.search(text):
        return ""
    return _WHOLE.sub(r"\1", text)


def _stored(text: str) -> Any:
    """The JSON or Python literal that a text is; None where it is neither."""
    if "\\\\" not in text:  # LaTeX that nobody escaped: `\frac` would begin with a form feed
        text = text.replace("\\", "\\\\")
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _from_number(value: float | Decimal) -> str:
    number = Decimal(str(value))
    if not number.is_finite():
        return "" if number.is_nan() else str(value)
    return _WHOLE.sub(r"\1", f"{number:f}")
