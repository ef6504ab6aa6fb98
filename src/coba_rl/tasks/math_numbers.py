"""What numbers and relations tell before two answers are compared by algebra. Imports SymPy."""

from __future__ import annotations

import zlib
from typing import Any

import sympy

_DIGITS = 1000
"""Up to which two exact constants are told apart."""
_ROUNDING = 1e-5
"""Relative difference of decimals; math-verify itself rounds to six of them."""


def is_contradiction(given: Any) -> bool:
    """Whether an equation contradicts itself (`1=5`); math-verify looks at its last side only."""
    sides = given.args if isinstance(given, sympy.Eq) else ()
    return bool(sides) and not given.free_symbols and differ_numerically(*sides)


def is_solved(given: Any) -> bool:
    """Whether bounds are put to one symbol (`1<x<5`), as an interval does: the inequality to be solved is no answer."""
    bounds = getattr(given, "_unsorted_args", (given,))
    return len(given.free_symbols) == 1 and all(
        isinstance(bound, sympy.Rel) and any(side.is_Symbol for side in bound.args) for bound in bounds
    )


def differ_numerically(expected: Any, given: Any) -> bool:
    """Whether values of one, in their order, are surely not those of the other.

    Example:
        >>> tiny = sympy.Integer(2) ** -98
        >>> differ_numerically(tiny, tiny / 2), differ_numerically(sympy.sqrt(8), 2 * sympy.sqrt(2))
        (True, False)
        >>> differ_numerically(sympy.Float("0.333333"), sympy.Rational(1, 3))
        False
    """
    one, other = _values(expected), _values(given)
    if one is None or other is None or len(one) != len(other):
        return False
    return any(map(_are_apart, sorted(one, key=_place), sorted(other, key=_place)))


def _values(expression: Any) -> list[Any] | None:
    """Value of a formula, or those in a collection; None where there are none, or no comparable ones.

    Variables are replaced by fixed numbers: what is equal is equal anywhere.
    """
    if isinstance(expression, sympy.Symbol | sympy.MatrixExpr) or expression.has(sympy.UnevaluatedExpr):
        return None  # words; matrices to be worked out; percentages, which have two readings
    if isinstance(expression, sympy.Expr):
        value = expression.subs({symbol: _coordinate(symbol.name) for symbol in expression.free_symbols})
        return [value] if value.is_number else None
    if isinstance(expression, sympy.Rel):
        sides = [side for side in expression.args if not side.free_symbols]
        return (
            _values(sides[0]) if len(sides) == 1 and any(side.is_Symbol for side in expression.args) else None
        )
    if isinstance(expression, sympy.MatrixBase):
        members = expression.flat()
    else:
        members = expression.args[:2] if isinstance(expression, sympy.Interval) else expression.args
    values = [_values(member) for member in members]
    return None if None in values else [value for part in values if part for value in part]


def _coordinate(name: str) -> Any:
    """A number between 1 and 2 that no formula has by chance."""
    return 1 + sympy.Rational(zlib.crc32(name.encode()) % 99_991, 99_991)


def _place(value: Any) -> list[Any]:
    """Where a number stands among others: by its real, then by its imaginary part."""
    return list(value.evalf(15).as_real_imag())


def _are_apart(a: Any, b: Any) -> bool:
    """Whether two numbers differ: exact ones by anything, decimals by more than rounding."""
    difference = (a - b).evalf(20, maxn=_DIGITS)
    # Parts that are known to one bit only may be zero.
    parts = [part for part in difference.as_real_imag() if part.is_Float and part._prec > 1 and part]
    if not parts or not (a.has(sympy.Float) or b.has(sympy.Float)):
        return bool(parts)
    # SymPy's floats, because Python's overflow.
    return bool(abs(difference) > _ROUNDING * sympy.Max(abs(a.evalf(20)), abs(b.evalf(20))))
