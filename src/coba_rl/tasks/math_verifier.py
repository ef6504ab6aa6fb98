r"""Judge a completion against a ground truth with math-verify, in bounded work.

The answer is found (`math_extract`), rewritten as one plain formula (`math_text`) and compared here. Most answers are
settled as text or as whole numbers. The rest is parsed and compared by math-verify, under four limits, because a
completion is whatever a model writes and a computer algebra system will try to evaluate `9^{9^{9^9}}`:

1. the text is short, shallow and without huge numerals or what is worked out while parsing;
2. nothing parsed would evaluate to a huge number or expand to a huge sum (a tower of exponents, a power of a sum);
3. formulas that differ numerically are unequal, without trying to simplify the difference: relative to their size,
   because math-verify takes everything below 1e-15 for zero;
4. parsing and comparing stop after a fixed number of function calls. Unlike a timeout this needs no signal, so it works
   in any thread, and the verdict does not depend on how busy the machine is.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from coba_rl.tasks.math_extract import extract_answer
from coba_rl.tasks.math_text import shape, tidy, without_letter

MAX_ANSWER_LENGTH = 256
"""Characters of an answer; a longer one is not judged by algebra."""
MAX_NESTING = 8
"""Brackets in brackets of an answer; the time to parse grows exponentially with it."""
MAX_BITS = 32_768
"""Size of a number that a comparison may evaluate (`2^{2014}` has 2015)."""
MAX_TERMS = 500
"""Size of a sum that a comparison may expand."""
MAX_CALLS = 1_250_000
"""Function calls of one parse or comparison: about a second; ordinary answers need a tenth of it."""

_DOLLAR = re.compile(r"(?<!\\)\$")
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,64}|[0-9]{0,32}\.[0-9]{1,32}|[0-9]{1,32}/[0-9]{1,32}|\\d?frac\{[0-9]{1,32}\}\{[0-9]{1,32}\}"
    r"|[0-9]{0,32}\\sqrt\{[0-9]{1,32}\}|[0-9]{0,32}\\pi)|\\text\{[^{}]*\}"
)
"""Texts that math-verify parses for sure, words among them."""
_REFUSED = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|gcd|lcm|det|choose|operatorname|[Gg]amma|xrightarrow)(?![A-Za-z])|[vV]matrix"
)
"""Worked out while parsing, or by algorithms without a bound; final answers hardly ever hold them."""
_ARGUMENT = r"[0-9A-Za-z+ -]{1,9}"
_EAGER = re.compile(r"\\[dt]?binom(?![A-Za-z])|\\sqrt\s*\[")
_PLAIN = re.compile(rf"\\[dt]?binom\s*\{{{_ARGUMENT}\}}\s*\{{{_ARGUMENT}\}}|\\sqrt\s*\[{_ARGUMENT}\]")
"""Binomials and roots are worked out while parsing too: fine with plain arguments."""
_SEPARATOR = re.compile(r"[,;<>=]|\\(?:[lg]eq?|[lg]t|neq?|not|in|notin|cup|cap|setminus)(?![A-Za-z])")
_LITERAL_SET = re.compile(r"\\mathbb\s*\{?\s*[A-Z]\s*\}?|\\emptyset|\\varnothing")

_SLOW_FUNCTIONS = {"sin", "cos", "asin", "acos", "atan", "tanh", "log", "Abs", "sign", "floor", "ceiling"}
"""Functions that grow no faster than their argument; any other is taken for an exponential."""


def score_answer(completion: str, answer: str) -> float | None:
    r"""Judge the final answer of a completion.

    Args:
        completion: Text of a model, of any length and content.
        answer: Ground truth, LaTeX or plain.

    Returns:
        1.0 for a right answer, 0.0 for a wrong or missing one or one beyond the limits of this module, None when the
        ground truth cannot be parsed (then nothing can be said about any completion).

    Example:
        >>> score_answer(r"Half of it, so \boxed{\frac{2}{4}}.", "1/2")
        1.0
        >>> score_answer("Answer: $35$", "34"), score_answer("no idea", "34"), score_answer("Answer: 34", "")
        (0.0, 0.0, None)
    """
    gold = tidy(answer)
    if not _is_judgeable(gold):
        return None
    found = extract_answer(completion)
    return float(found is not None and _is_equal(gold, tidy(found)))


def can_judge(answer: str) -> bool:
    r"""Whether a ground truth can be parsed, so that completions can be judged by it.

    Example:
        >>> can_judge(r"\frac{1}{2}"), can_judge("even"), can_judge(r"\frac{1}{"), can_judge("")
        (True, True, False, False)
    """
    return _is_judgeable(tidy(answer))


def _is_judgeable(gold: str) -> bool:
    return len(gold) <= MAX_ANSWER_LENGTH and (bool(_NUMBER.fullmatch(gold)) or _parsed(gold) is not None)


@lru_cache(maxsize=8192)
def _is_equal(gold: str, found: str) -> bool:
    if _NUMBER.fullmatch(gold):
        found = without_letter(found)
    if gold == found:
        return True
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(found):
        return int(gold) == int(found)
    shapes = {shape(gold), shape(found)}
    if {"pair", "set"} <= shapes:
        return False
    if {"pair", "list"} <= shapes:  # without its brackets a pair still has an order
        gold, found = (f"({side})" if shape(side) == "list" else side for side in (gold, found))
    expected, given = _parsed(gold), _parsed(found)
    if expected is None or given is None:
        return False
    return bool(_within_calls(lambda: _compare(expected, given)))


@lru_cache(maxsize=32_768)
def _parsed(text: str) -> Any:
    """The SymPy object of an answer, None where there is none within the limits."""
    if not text or not _is_readable(text):
        return None
    # Text around formulas is left to the extraction of math-verify; without delimiters, the whole is one formula.
    formula = text if _DOLLAR.search(text) else f"${text}$"
    if _SEPARATOR.search(formula):
        # Bounds of intervals are compared while parsing, whatever their size: look at the parts first, as one sum.
        parts = _parse(_as_sum(formula))
        if parts is None or not _within_calls(lambda: _is_bounded(parts)):
            return None
    return _parse(formula)


def _parse(formula: str) -> Any:
    math_verify, config = _math_verify()
    found = _within_calls(
        lambda: math_verify.parse(formula, [config], fallback_mode="no_fallback", parsing_timeout=None)
    )
    return found[0] if found else None


def _as_sum(formula: str) -> str:
    r"""Intervals, tuples, sets and relations as a sum of their parts.

    Example:
        >>> _as_sum(r"$x \in [1,2) \cup \{3\}$")
        '$x + (1+2) + (3)$'
    """
    text = _LITERAL_SET.sub("1", _PLAIN.sub("1", formula))
    text = _SEPARATOR.sub("+", text).replace("\\{", "(").replace("\\}", ")")
    return text.translate(str.maketrans("[]", "()"))


def _compare(expected: Any, given: Any) -> bool:
    from coba_rl.tasks.math_numbers import differ_numerically, is_contradiction, is_solved  # needs SymPy

    if not (_is_bounded(expected) and _is_bounded(given)):
        return False
    if is_contradiction(given) or differ_numerically(expected, given):
        return False
    math_verify, _ = _math_verify()
    return math_verify.verify(
        [expected], [given], timeout_seconds=None, allow_set_relation_comp=is_solved(given)
    )


def _is_readable(text: str) -> bool:
    """Whether a text may be parsed at all: parsing works out some of it at once."""
    if len(text) > MAX_ANSWER_LENGTH or _REFUSED.search(text) or _nesting(text) > MAX_NESTING:
        return False
    num_eager = len(_EAGER.findall(text))
    longest_numeral = max((len(numeral) for numeral in re.findall(r"[0-9]+", text)), default=0)
    return num_eager == len(_PLAIN.findall(text)) and longest_numeral <= (4 if num_eager else 64)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest + text.count("|") // 2


def _is_bounded(expression: Any) -> bool:
    bits, terms = _size(expression)
    return bits <= MAX_BITS and terms <= MAX_TERMS


def _size(expression: Any) -> tuple[float, float]:
    """Upper bounds of a value's bits (taking symbols for 2) and of the terms it expands to; infinite if huge."""
    import sympy

    if isinstance(expression, sympy.Rational):
        return max(abs(int(expression.p)).bit_length(), int(expression.q).bit_length(), 1), 1
    if isinstance(expression, sympy.Float):
        return max(1, abs(int(expression._mpf_[2])) + int(expression._mpf_[3])), 1
    children = expression.flat() if isinstance(expression, sympy.MatrixBase) else expression.args
    sizes = [_size(child) for child in children]
    if not sizes:
        return 2, 1
    bits, terms = max(size[0] for size in sizes), max(size[1] for size in sizes)
    if isinstance(expression, sympy.Pow | sympy.MatPow):
        return _size_of_power(expression, *sizes)
    if isinstance(expression, sympy.Mul):
        return sum(size[0] for size in sizes), math.prod(size[1] for size in sizes)
    if isinstance(expression, sympy.Add):
        return bits + len(sizes), sum(size[1] for size in sizes)
    if isinstance(expression, sympy.Function):
        # A power of a function expands too (multiple angles), like that of a sum of two.
        is_slow = expression.func.__name__ in _SLOW_FUNCTIONS
        return bits if is_slow else (bits + 1) * 2.0 ** min(bits, 64), max(terms, 2)
    return bits, terms


def _size_of_power(
    power: Any, base: tuple[float, float], exponent: tuple[float, float]
) -> tuple[float, float]:
    is_literal = (power.exp.is_Rational or power.exp.is_Float) and exponent[0] < 999
    times = float(abs(power.exp)) if is_literal else 2.0 ** min(exponent[0], 64)
    if base[1] <= 1:
        return base[0] * max(times, 1), 1
    # n factors of t terms expand to at most "n + t − 1 choose n" terms.
    num_factors = math.ceil(min(times, MAX_TERMS + 1))
    terms = math.comb(num_factors + math.ceil(min(base[1], MAX_TERMS + 1)) - 1, num_factors)
    return base[0] * max(times, 1), float(min(terms, 2 * MAX_TERMS))


class _TooManyCalls(BaseException):
    """Not an Exception, or the many `except Exception` on the way would swallow it."""


def _within_calls(function: Callable[[], Any]) -> Any:
    """Result of a function, None if it raises or makes more than `MAX_CALLS` calls."""
    left = MAX_CALLS

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        # Not on a return: one may be that of a generator being deleted, where exceptions are dropped.
        if event in ("call", "c_call"):
            left -= 1
            if left < 0:
                raise _TooManyCalls

    profiler = sys.getprofile()
    if profiler is None:  # under a profiler the limit is off: Python has room for one
        sys.setprofile(count)
    try:
        return function()
    except (Exception, _TooManyCalls):
        return None
    finally:
        if profiler is None:
            sys.setprofile(None)


@lru_cache(maxsize=1)
def _math_verify() -> tuple[Any, Any]:
    try:
        import math_verify
    except ImportError as error:
        raise ImportError("maths answers are judged by math-verify: pip install 'coba-rl[math]'") from error
    # It warns that without its timeout the caller must bound the work, which is what this module does.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).addFilter(
            lambda record: not record.getMessage().startswith("Timeout is disabled")
        )
    # Units are taken away before: math-verify takes the variable of `2t` for one.
    config = math_verify.LatexExtractionConfig()
    normalization = dataclasses.replace(config.normalization_config, units=False)
    return math_verify, dataclasses.replace(config, normalization_config=normalization)
