"""The second embedded task: find the rule that is due, name it, and apply it to the whole string.

In the prompt `D2719=` the letter, moved on by the string's first digit, names the rule: D → F, which reverses the string
and takes every digit from 9. The answer is `F0827`. Prompts share no steps, as those of prefix-scan do: what is learned
on one helps those of the same letter and first digit, of which there are 160 pairs. A string's length is drawn
independently of both, so it says nothing of how hard the prompt is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_uppercase
from typing import ClassVar

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.tasks.embedded import EmbeddedTask

ORDERS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda digits: digits,
    lambda digits: digits[..., ::-1],
    lambda digits: np.roll(digits, -1, axis=-1),
    lambda digits: np.roll(digits, 1, axis=-1),
)
"""As they stand, reversed, the first moved to the end, the last moved to the front."""

DIGIT_MAPS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda digits: digits,
    lambda digits: 9 - digits,
    lambda digits: (digits + 1) % 10,
    lambda digits: (digits + 5) % 10,
)
"""The same digit, its complement to 9, and the digit one and five further on."""

RULES = ascii_uppercase[: len(ORDERS) * len(DIGIT_MAPS)]
"""Letters of the rules: A to D keep the order with each map in turn, E to H reverse it, and so on."""

DUE = (np.arange(len(RULES))[:, None] + np.arange(10)) % len(RULES)
"""int64 (16, 10): letter, first digit → position of the rule that is due."""

MIN_LENGTH, MAX_LENGTH = 3, 8
"""Shortest and longest string the policies are warm-started on."""


def apply_rules(digits: np.ndarray) -> np.ndarray:
    """What every rule makes of strings of one length.

    Args:
        digits: int64 (..., L), each 0 to 9.

    Returns:
        int64 (..., rules, L), the rules in the order of `RULES`.

    Example:
        >>> apply_rules(np.array([2, 7, 1, 9]))[RULES.index("F")].tolist()
        [0, 8, 2, 7]
    """
    return np.stack([change(order(digits)) for order in ORDERS for change in DIGIT_MAPS], axis=-2)


@dataclass(frozen=True)
class StringTransform(EmbeddedTask):
    """Strings of digits to transform by the rule that is due, their lengths drawn independently of it.

    See `EmbeddedTask` for what its options promise.

    Example:
        >>> task = StringTransform(num_train=4, num_heldout=2, min_length=4, max_length=4)
        >>> task.answer("D2719="), len(task.train_problems()[0].prompt)
        ('F0827', 6)
    """

    name: ClassVar[str] = "string-transform"
    max_prompt_length: ClassVar[int] = MAX_LENGTH + 2
    max_completion_length: ClassVar[int] = MAX_LENGTH + 2
    regimes: ClassVar[tuple[str, ...]] = ("hard",)
    symbols: ClassVar[str] = "0123456789" + RULES + "="
    policy_card: ClassVar[str] = (
        "completes prompts such as `D2719=` with the rule that is due, D moved on by the first digit, and the string that "
        f"it gives (`F0827`: reversed, each digit taken from 9); it was trained on strings of {MIN_LENGTH} to {MAX_LENGTH} digits"
    )

    min_length: int = MIN_LENGTH
    """Fewest digits in a string, at least 3."""
    max_length: int = MAX_LENGTH
    """Most digits in a string, at most 8."""

    def __post_init__(self) -> None:
        if not MIN_LENGTH <= self.min_length <= self.max_length <= MAX_LENGTH:
            raise ConfigError(
                f"min_length={self.min_length!r} and max_length={self.max_length!r}, "
                f"expected {MIN_LENGTH} <= min_length <= max_length <= {MAX_LENGTH}."
            )
        super().__post_init__()

    @property
    def num_distinct(self) -> int:
        """How many distinct prompts the options allow."""
        return sum(len(RULES) * 10**length for length in range(self.min_length, self.max_length + 1))

    def random_prompt(self, rng: np.random.Generator) -> str:
        """Draw a prompt: length, letter and digits, each uniformly; `rng` is advanced in place."""
        length = int(rng.integers(self.min_length, self.max_length + 1))
        letter = RULES[rng.integers(0, len(RULES))]
        return f"{letter}{''.join(map(str, rng.integers(0, 10, length)))}="

    def answer(self, prompt: str) -> str:
        """The letter of the rule that is due, and the transformed string.

        Raises:
            ValueError: The prompt is not a letter, digits and `=`.
        """
        letter, string = prompt[:1], prompt[1:-1]
        if letter not in RULES or not (string.isascii() and string.isdigit()) or prompt[-1:] != "=":
            raise ValueError(
                f"Not a string-transform prompt: {prompt!r}. Expected a letter out of {RULES!r}, digits, then '=', such as "
                "'D2719='."
            )
        digits = np.array(list(map(int, string)))
        due = DUE[RULES.index(letter), digits[0]]
        return RULES[due] + "".join(map(str, apply_rules(digits)[due].tolist()))
