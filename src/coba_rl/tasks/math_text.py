r"""Rewrite an answer as one formula that math-verify reads: without typography and units, words as words, lists plain.

`35\,\text{cm}` → `35`, `\pm 2` → `+ 2, - 2`, `1, 2, and 3` → `1, 2, 3`, `1e-5` → `1\cdot 10^{-5}`.
"""

from __future__ import annotations

import re
from typing import Literal

MAX_LENGTH = 512
"""Characters of an answer that is rewritten; a longer one stays as it is."""

_SYMBOLS = str.maketrans({
    "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{FULLWIDTH HYPHEN-MINUS}": "-", "\N{FULLWIDTH COMMA}": ",",
    "\N{DEGREE SIGN}": "^\\circ ", "\N{MULTIPLICATION SIGN}": "\\times ", "\N{MIDDLE DOT}": "\\cdot ",
    "\N{GREEK SMALL LETTER PI}": "\\pi ", "\N{INFINITY}": "\\infty ", "\N{PLUS-MINUS SIGN}": "\\pm ",
    "\N{ALMOST EQUAL TO}": "\\approx ", "\N{LESS-THAN OR EQUAL TO}": "\\le ", "\N{GREATER-THAN OR EQUAL TO}": "\\ge ",
    "\N{UNION}": "\\cup ", "\N{EMPTY SET}": "\\emptyset ", "~": " ", "\N{NO-BREAK SPACE}": " ", "\N{EURO SIGN}": "",
    "\N{POUND SIGN}": "",
})  # fmt: skip
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_COMMANDS = {
    **dict.fromkeys(("\\(", "\\)", "\\[", "\\]"), "$"),
    **dict.fromkeys(("\\,", "\\;", "\\:", "\\>", "\\ ", "\\\n", "\\quad", "\\qquad", "\\thinspace", "\\space"), " "),
    **dict.fromkeys(("\\!", "\\$", "\\left", "\\right", "\\displaystyle", "\\boldsymbol", "\\underline"), ""),
    **dict.fromkeys(("\\mbox", "\\textbf", "\\textit", "\\textrm", "\\mathrm", "\\mathbf", "\\mathit"), "\\text"),
    **dict.fromkeys(("\\thickapprox", "\\simeq", "\\sim"), "\\approx"),
    "\\varnothing": "\\emptyset",
}  # fmt: skip
"""What becomes of a command; any other is left."""

_DIGIT_GROUPS = re.compile(r"(?<=[0-9])(?:\\[,;:! ]|~|\{,\})+(?=[0-9]{3}(?![0-9]))")
"""What typesetters put between thousands."""
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])")
_BRACKET = re.compile(r"[(\[]|\\\{")
_SCIENTIFIC = re.compile(
    r"(?<![A-Za-z0-9.\\])([0-9]+\.?[0-9]*|\.[0-9]+)[eE]([+-]?[0-9]{1,3})(?![A-Za-z0-9.])"
)
_LONE_LETTER = re.compile(r"\\text\s*\{\s*([eid])\s*\}")
"""Constants that are set upright."""
_IMAGINARY = re.compile(r"(?<=[0-9}])i(?![A-Za-z])")
_REPEATING = re.compile(r"([0-9]{1,16})\.([0-9]{0,16})\\overline\s*\{([0-9]{1,16})\}")
_BASE_IN_WORDS = re.compile(r"(?<=[0-9A-F)])\s*(?:\\text\s*\{)?\s*\(?(?:in )?base\s*\}?\s*([0-9]{1,2})\)?\}?")
_BASED = re.compile(
    r"(?<![A-Za-z0-9_.\\}])\(?([0-9][0-9A-F]*)\)?_(?:\{\s*\(?([0-9]{1,2})\)?\s*\}|([0-9])(?![0-9]))"
)
"""Digits in a base."""

_TOKEN = re.compile(
    r"(?P<separator>[,;]|\\text\s*\{[\s,]*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z]))"
    r"|(?P<open>\\\{|[(\[{])|(?P<close>\\\}|[)\]}])|\\.|.",
    re.DOTALL,
)
_ADJACENT_TEXT = re.compile(r"(\\text\s*\{[^{}]*)\}\s*\\text\s*\{")
_ABOUT = re.compile(r"^(?:([A-Za-z])\s*)?(?:\\approx|=)(?![A-Za-z])")
_PLUS_MINUS = re.compile(r"\\(p|m)[pm](?![A-Za-z])")
_MEMBERSHIP = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])")
_NAME = re.compile(r"^[A-Za-z]\s*=")

_UNIT = re.compile(
    r"(?P<value>.*[0-9A-Za-z)}\]%])\s*/?\s*\\text\s*\{(?P<unit>[^{}]*)\}(?:\^\{?[0-9]\}?)?|"
    r"(?P<plain>.*(?:[0-9)}]|\\pi))(?:\s*(?P<short>cm|mm|km|kg|mg|ml|ft|mph|lb|oz|yd|hr|min|sec|deg)"
    r"|\s+(?P<long>[A-Za-z]{3,}(?:[\s/]+[A-Za-z]+)*))\.?(?:\^\{?[0-9]\}?)?",
    re.DOTALL,
)
_LETTER_UNIT = re.compile(r"(?<=[0-9]) ?[msghlL](?:\^\{?[23]\}?)?$")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words after a number that are no unit: powers of ten."""
_PLAIN_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'’-]+[^\W\d_]+)*")
_FORMULA_WORDS = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "max", "min", "mod", "frac", "inf", "infinity"),
    *("infty", "percent", "percentage", "pct", "alpha", "beta", "gamma", "delta", "theta", "lambda", "sigma", "omega"),
}  # fmt: skip
"""Words that math-verify reads as mathematics."""


Shape = Literal["value", "list", "pair", "set"]


def tidy(answer: str) -> str:
    r"""One formula, in the form that answers are compared in.

    Example:
        >>> tidy("**34.**"), tidy(r"\(x^2\)"), tidy("$1,034$"), tidy("either $1$ or $2$")
        ('34', 'x^2', '1034', 'either $1$ or $2$')
        >>> tidy(r"35\,\text{cm}"), tidy(r"x = \pm 2"), tidy("1, 2, and 3"), tidy("$18"), tidy("Even")
        ('35', 'x = + 2, x = - 2', '1, 2, 3', '18', '\\text{even}')
    """
    if len(answer) > MAX_LENGTH:
        return answer
    text = _typeset(answer.strip(" \t\r\n*`"))
    formula = _formula(text.strip(" $*").rstrip("\\").removesuffix("."))
    # Formulas amid prose are left to the extraction of math-verify.
    return text.strip().removesuffix(".") if "$" in formula else formula


def shape(text: str) -> Shape:
    r"""What a tidied answer is: one value, a list, a set or a pair (any ordered tuple, or an interval).

    Example:
        >>> shape("x+1"), shape("1, 2"), shape(r"\{1,2\}"), shape("(1,2)"), shape("x = [1,2)"), shape("(1,2),(3,4)")
        ('value', 'list', 'set', 'pair', 'pair', 'list')
    """
    text = _NAME.sub("", text).strip()
    if len(_members(text)) > 1:
        return "list"
    opening, inner, _ = _bracketed(text)
    if not opening or len(_members(inner)) < 2:
        return "value"
    return "pair" if opening in "([" else "set"


def without_letter(text: str) -> str:
    r"""A number without a unit of one letter, which stands for itself in a formula.

    Example:
        >>> without_letter("5 m^2"), without_letter("5x")
        ('5', '5x')
    """
    return _LETTER_UNIT.sub("", text)


def _typeset(text: str) -> str:
    """Commands and signs of typesetting as the plain ones that mean the same."""
    text = _DIGIT_GROUPS.sub("", text).replace("{,}", ",").replace("$$", "$").translate(_SYMBOLS)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match.group(), match.group()), text)
    text = _LONE_LETTER.sub(r" \1 ", _ADJACENT_TEXT.sub(r"\1 ", text))
    text = _REPEATING.sub(_as_fraction, text)
    text = _IMAGINARY.sub(" i", _SCIENTIFIC.sub(r"\1\\cdot 10^{\2}", text))
    if not _BRACKET.search(text):  # (100,200) is a pair
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    return _BASED.sub(_as_symbol, _BASE_IN_WORDS.sub(r"_{\1}", text))


def _as_fraction(decimal: re.Match[str]) -> str:
    """A repeating decimal, exactly."""
    whole, once, repeated = decimal.groups()
    above = int(whole + once + repeated) - int(whole + once)
    return f"\\frac{{{above}}}{{{(10 ** len(repeated) - 1) * 10 ** len(once)}}}"


def _as_symbol(based: re.Match[str]) -> str:
    """Digits in a base as a symbol: equal to the same digits in the same base only."""
    digits, base = based[1], int(based[2] or based[3])
    if base == 10 or any(int(digit, 16) >= base for digit in digits):
        return digits if base == 10 else based[0]
    return f"\\text{{{digits} base {base}}}"


def _formula(text: str) -> str:
    """The members of a list, each plain."""
    if whole := _PLAIN_TEXT.fullmatch(text):
        text = whole[1]
    return ", ".join(_member(signed) for member in _members(text) for signed in _both_signs(member))


def _both_signs(member: str) -> list[str]:
    r"""A member with \pm as two; inside of a set, the set's members are."""
    if not _PLUS_MINUS.search(member) or _bracketed(member)[0] == "\\{":
        return [member]
    upper = _PLUS_MINUS.sub(lambda sign: "+" if sign[1] == "p" else "-", member)
    lower = _PLUS_MINUS.sub(lambda sign: "-" if sign[1] == "p" else "+", member)
    return [upper, lower]


def _members(text: str) -> list[str]:
    """Parts between commas, semicolons, "and" and "or" outside of brackets."""
    depth, parts = 0, [""]
    for token in _TOKEN.finditer(text):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if depth == 0 and token.lastgroup == "separator":
            parts.append("")
        else:
            parts[-1] += token.group()
    return [part.strip() for part in parts if part.strip()]


def _bracketed(text: str) -> tuple[str, str, str]:
    """Opening bracket, inside and closing bracket of a text that is one bracket; three empty texts for any other."""
    depth = 0
    tokens = list(_TOKEN.finditer(text))
    for token in tokens:
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if depth == 0:
            break
    if not tokens or tokens[0].lastgroup != "open" or depth or token is not tokens[-1]:
        return "", "", ""
    return tokens[0].group(), text[tokens[0].end() : token.start()], token.group()


def _member(text: str) -> str:
    """One member of a list: no delimiters, no "about", no unit; words as a symbol."""
    text = text.strip(" $*").removesuffix(".")
    text = _ABOUT.sub(lambda match: f"{match[1]} =" if match[1] else "", _MEMBERSHIP.sub("", text)).strip()
    text = _without_unit(_without_unit(text))
    text = _PLAIN_TEXT.sub(lambda match: match[0] if sum(map(str.isalpha, match[1])) > 1 else match[1], text)
    opening, inner, closing = _bracketed(text)
    if opening == "\\{" or len(_members(inner)) > 1:
        return opening + _formula(inner) + closing
    plain = _PLAIN_TEXT.fullmatch(text)
    words = " ".join((plain[1] if plain else text).split())
    return f"\\text{{{words.casefold()}}}" if _are_words(words) else text


def _without_unit(text: str) -> str:
    match = _UNIT.fullmatch(text)
    if match is None:
        return text
    value = match["value"] or match["plain"]
    words = (match["unit"] or match["short"] or match["long"] or "").split()
    if words in (["percent"], ["percentage"], ["pct"]):
        return f"{value}\\%"
    if words and words[0] in _SCALES:
        return f"{value}\\cdot 10^{{{_SCALES[words[0]]}}}"
    return text if _FORMULA_WORDS.intersection(map(str.casefold, words)) else value


def _are_words(text: str) -> bool:
    if not _WORDS.fullmatch(text) or (len(text) < 3 and text.casefold() != "no"):
        return False
    return not _FORMULA_WORDS.intersection(text.casefold().split())
