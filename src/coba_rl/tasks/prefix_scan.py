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

from coba_rl.errors import ConfigError, suggestion
from coba_rl.tasks.base import Problem, Prompt, Task, content_id

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

REGIMES = ("hard", "heterogeneous", "moderate")
"""Names of the shipped policies, from the lowest mean pass rate to the highest."""

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


def random_prompt(rng: np.random.Generator, min_operators: int, max_operators: int) -> str:
    """Draw a prompt: number of operators, operators and digits, each uniformly.

    Args:
        rng: Source of randomness, advanced in place.
        min_operators: Fewest operators.
        max_operators: Most operators, inclusive.

    Returns:
        Prompt of 2·operators + 2 characters.

    Example:
        >>> len(random_prompt(np.random.default_rng(0), 3, 3))
        8
    """
    num_operators = int(rng.integers(min_operators, max_operators + 1))
    digits = rng.integers(0, 10, num_operators + 1)
    operators = rng.integers(0, len(OPERATORS), num_operators)
    symbols = list(OPERATORS)
    steps = "".join(f"{symbols[o]}{d}" for o, d in zip(operators, digits[1:], strict=True))
    return f"{digits[0]}{steps}="


def check_regime(regime: str) -> None:
    """Raise a `ConfigError` that suggests the nearest name unless `regime` is one of `REGIMES`."""
    if regime not in REGIMES:
        raise ConfigError(f"Unknown regime {regime!r}. {suggestion(str(regime), REGIMES)}")


@dataclass(frozen=True)
class PrefixScan(Task):
    """Chains of one-digit operators, generated from a seed, with train and held-out prompts disjoint.

    The held-out prompts depend on `seed`, `num_heldout` and the operator range only, so runs with different amounts of
    training data are evaluated on the same prompts; a larger `num_train` appends to a smaller one.

    Raises:
        ConfigError: An option is out of range, or there are not enough distinct prompts.

    Example:
        >>> task = PrefixScan(num_train=4, num_heldout=2, seed=1)
        >>> problem = task.train_problems()[0]
        >>> task.score(problem.answer, problem.answer), task.score("", problem.answer)
        (1.0, 0.0)
    """

    name: ClassVar[str] = "prefix-scan"
    max_prompt_length: ClassVar[int] = 2 * MAX_OPERATORS + 2
    max_completion_length: ClassVar[int] = MAX_OPERATORS + 1

    regime: str = "hard"
    """Which shipped policy to start from: `hard`, `heterogeneous` or `moderate`. The prompts do not depend on it."""
    num_train: int = 1024
    """Prompts to train on."""
    num_heldout: int = 512
    """Prompts to evaluate on; may be 0."""
    min_operators: int = 1
    """Fewest operators in a prompt."""
    max_operators: int = MAX_OPERATORS
    """Most operators in a prompt, at most 8."""
    seed: int = 0
    """Seed of the prompts."""

    def __post_init__(self) -> None:
        check_regime(self.regime)
        for option, low in (("num_train", 1), ("num_heldout", 0), ("seed", 0)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{option}={value!r}, expected an integer of at least {low}.")
        if not 1 <= self.min_operators <= self.max_operators <= MAX_OPERATORS:
            raise ConfigError(
                f"min_operators={self.min_operators!r} and max_operators={self.max_operators!r}, "
                f"expected 1 <= min_operators <= max_operators <= {MAX_OPERATORS}."
            )
        distinct = sum(
            10 * (10 * len(OPERATORS)) ** k for k in range(self.min_operators, self.max_operators + 1)
        )
        if self.num_train + self.num_heldout > distinct:
            raise ConfigError(
                f"num_train={self.num_train!r} + num_heldout={self.num_heldout!r} exceeds the {distinct} distinct "
                f"prompts with {self.min_operators} to {self.max_operators} operators; ask for fewer prompts or "
                "raise max_operators."
            )

    def train_problems(self) -> list[Problem]:
        """Problems to train on, in an order that only the options decide."""
        heldout = {problem.prompt for problem in self.heldout_problems()}
        return self._draw(0, self.num_train, heldout)

    def heldout_problems(self) -> list[Problem]:
        """Problems never trained on, in an order that only the options decide."""
        return self._draw(1, self.num_heldout, excluded=set())

    def score(self, completion: str, answer: str) -> float:
        """1.0 if the completion without surrounding white space equals the answer, else 0.0.

        Example:
            >>> PrefixScan().score(" 127\\n", "127"), PrefixScan().score("1270", "127")
            (1.0, 0.0)
        """
        return float(completion.strip() == answer)

    def _draw(self, stream: int, count: int, excluded: set[Prompt]) -> list[Problem]:
        """Draw `count` distinct prompts outside `excluded` from an independent stream of the seed."""
        rng = np.random.default_rng([self.seed, stream])
        prompts: dict[str, None] = {}  # a set that remembers the order
        while len(prompts) < count:
            prompt = random_prompt(rng, self.min_operators, self.max_operators)
            if prompt not in excluded:
                prompts[prompt] = None
        return [Problem(content_id(p), p, running_values(p), data_source=self.name) for p in prompts]
