"""The embedded task: apply a chain of one-digit operators and write every running value.

The prompt `3+8*2-5=` has the answer `127`: 3+8 = 11 → 1, then 1*2 = 2, then 2-5 = -3 → 7. All prompts are made of the
same 600 one-step facts (6 operators, 10 running values, 10 operands), so what a policy learns on one prompt helps on
others, held-out ones included. The right completion is unique, which makes the exact pass rate computable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.tasks.embedded import EmbeddedTask

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    ">": max,
    "<": min,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "@": lambda a, b: a + 2 * b + 1,
}
"""Operator character → function of (running value, operand); the result is taken modulo 10."""

_PROMPT = re.compile(rf"[0-9](?:[{re.escape(''.join(OPERATORS))}][0-9])+=")

MAX_OPERATORS = 8
"""Longest chain the policies are warm-started on."""


def running_values(prompt: str) -> str:
    """Answer of a prompt: the running value modulo 10 after every operator, left to right.

    Args:
        prompt: Digits and operator characters in turn, ending in `=`.

    Returns:
        One digit an operator.

    Raises:
        ValueError: The prompt is not of that form.

    Example:
        >>> running_values("3+8*2-5=")
        '127'
        >>> running_values("3>8<2@4=")
        '821'
    """
    if not _PROMPT.fullmatch(prompt):
        raise ValueError(
            f"Not a prefix-scan prompt: {prompt!r}. Expected digits and operators out of "
            f"{''.join(OPERATORS)!r} in turn, then '=', such as '3+8*2-5='."
        )
    value, values = int(prompt[0]), []
    for operator, digit in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        value = OPERATORS[operator](value, int(digit)) % 10
        values.append(str(value))
    return "".join(values)


@dataclass(frozen=True)
class PrefixScan(EmbeddedTask):
    """Chains of one-digit operators. See `EmbeddedTask` for what its options promise.

    Example:
        >>> task = PrefixScan(num_train=4, num_heldout=2, seed=1)
        >>> problem = task.train_problems()[0]
        >>> task.score(problem.answer, problem.answer), task.score("", problem.answer)
        (1.0, 0.0)
    """

    name: ClassVar[str] = "prefix-scan"
    max_prompt_length: ClassVar[int] = 2 * MAX_OPERATORS + 2
    max_completion_length: ClassVar[int] = MAX_OPERATORS + 1
    regimes: ClassVar[tuple[str, ...]] = ("hard", "heterogeneous", "moderate")
    symbols: ClassVar[str] = "0123456789" + "".join(OPERATORS) + "="
    policy_card: ClassVar[str] = (
        "completes prompts such as `3+8*2-5=` with the running value modulo 10 after every operator (`127`); it was "
        f"trained on 1 to {MAX_OPERATORS} operators"
    )

    min_operators: int = 1
    """Fewest operators in a prompt."""
    max_operators: int = MAX_OPERATORS
    """Most operators in a prompt, at most 8."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_operators <= self.max_operators <= MAX_OPERATORS:
            raise ConfigError(
                f"min_operators={self.min_operators!r} and max_operators={self.max_operators!r}, "
                f"expected 1 <= min_operators <= max_operators <= {MAX_OPERATORS}."
            )
        super().__post_init__()

    @property
    def num_distinct(self) -> int:
        """How many distinct prompts the options allow."""
        return sum(10 * (10 * len(OPERATORS)) ** k for k in range(self.min_operators, self.max_operators + 1))

    def random_prompt(self, rng: np.random.Generator) -> str:
        """Draw a prompt: number of operators, operators and digits, each uniformly; `rng` is advanced in place."""
        num_operators = int(rng.integers(self.min_operators, self.max_operators + 1))
        digits = rng.integers(0, 10, num_operators + 1)
        operators = rng.integers(0, len(OPERATORS), num_operators)
        symbols = list(OPERATORS)
        steps = "".join(f"{symbols[o]}{d}" for o, d in zip(operators, digits[1:], strict=True))
        return f"{digits[0]}{steps}="

    def answer(self, prompt: str) -> str:
        """Every running value, see `running_values`."""
        return running_values(prompt)
