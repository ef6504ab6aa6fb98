r"""Find the final answer of a completion or of a worked solution: the last `\boxed{…}`, else the last "answer: …"."""

from __future__ import annotations

import re
from collections import deque

MAX_LENGTH = 1024
"""Characters of an answer as written; a longer one is cut, or for a box passed over."""
_LAST = 8
"""Boxes and lines that are tried, from the end: the work is linear in the text."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BLANK = re.compile(r"(?:\\(?:[lc]?dots|text|square|quad|[,; ])|[\s{}()?._…$])*")
"""A box that waits for its content."""
_ANSWER_LINE = re.compile(r"answer[\s*]*(?:[:\uff1a]|\bis\b[\s*]*:?)", re.IGNORECASE)
_DELIMITED = re.compile(
    r"\\\[(.+?)\\\]|\$\$(.+?)\$\$|\$\s*\n(.+?)\$|```[a-z]*\s*\n(.+?)```|`([^`]+)`|\\begin\{(?:equation|align)\*?\}(.+?)\\end\{",
    re.DOTALL,
)
"""An answer over several lines, or in backticks."""
_SENTENCE = re.compile(r"[^\n]*?(?=\.\s+\S|\n|$)")


def extract_answer(text: str) -> str | None:
    r"""The last readable box, or without one what follows the last "answer:" or "answer is"; None without either.

    What follows may stand on the next line, in display maths or in backticks. After `</think>` only the rest counts,
    if it holds an answer.

    Example:
        >>> extract_answer("I think \\boxed{3}. Wait.\nAnswer: 4"), extract_answer("Answer:\n$$\n5\n$$")
        ('3', '5')
        >>> extract_answer("<think>\\boxed{1}?</think>The answer is 2. Done.")
        '2'
    """
    _, thought, rest = text.rpartition("</think>")
    found = (last_boxed(rest) or _last_line(rest)) if thought else None
    return found or last_boxed(text) or _last_line(text)


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{…}` that closes and is not blank.

    Example:
        >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}, to be put into \boxed{}")
        '\\frac{1}{2}'
    """
    for start in reversed(deque((match.end() for match in _BOX.finditer(text)), maxlen=_LAST)):
        depth = 1
        for brace in _BRACE.finditer(text, start, start + MAX_LENGTH):
            depth += {"{": 1, "}": -1}.get(brace.group(), 0)
            if depth == 0:
                content = text[start : brace.start()].strip()
                if not _BLANK.fullmatch(content):
                    return content
                break
    return None


def _last_line(text: str) -> str | None:
    """What follows the last "answer:" or "answer is" that something follows."""
    for start in reversed(deque((match.end() for match in _ANSWER_LINE.finditer(text)), maxlen=_LAST)):
        rest = text[start : start + MAX_LENGTH].lstrip(" \t\r\n*")
        delimited = _DELIMITED.match(rest)
        if delimited:
            return next(part for part in delimited.groups() if part).strip()
        line = _SENTENCE.match(rest)
        if line and line.group().strip():
            return line.group().strip()
    return None
