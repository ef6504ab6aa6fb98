"""What the embedded tasks share: prompts drawn from a seed, one right completion each, a shipped policy to start from."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coba_rl import plugins
from coba_rl.errors import ConfigError, suggestion
from coba_rl.tasks import TASKS
from coba_rl.tasks.base import Problem, Prompt, Task, content_id


def special_ids(symbols: str) -> tuple[int, int]:
    """Token ids of `<pad>` and `<eos>`, which follow those of the symbols."""
    return len(symbols), len(symbols) + 1


@dataclass(frozen=True)
class EmbeddedTask(Task):
    """Prompts generated from a seed, with train and held-out prompts disjoint.

    The held-out prompts do not depend on `num_train`, so runs with different amounts of training data are evaluated on
    the same prompts; a larger `num_train` appends to a smaller one. The right completion is unique, which makes exact
    pass rates and exact expected scores computable.

    Raises:
        ConfigError: An option is out of range, or there are not enough distinct prompts.
    """

    regimes: ClassVar[tuple[str, ...]]
    """Names of the shipped policies, from the lowest mean pass rate to the highest."""
    symbols: ClassVar[str]
    """Characters of prompts and answers; a character's position is its token id."""
    policy_card: ClassVar[str]
    """What a policy of the task completes, and what it was trained on."""

    regime: str = "hard"
    """Which shipped policy to start from. The prompts do not depend on it."""
    num_train: int = 1024
    """Prompts to train on."""
    num_heldout: int = 512
    """Prompts to evaluate on; may be 0."""
    seed: int = 0
    """Seed of the prompts."""
    graded: bool = False
    """Score the share of the answer that is right before the first error, instead of 1 or 0 for the whole."""

    def __post_init__(self) -> None:
        if self.regime not in self.regimes:
            raise ConfigError(f"Unknown regime {self.regime!r}. {suggestion(str(self.regime), self.regimes)}")
        for option, low in (("num_train", 1), ("num_heldout", 0), ("seed", 0)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{option}={value!r}, expected an integer of at least {low}.")
        if self.num_train + self.num_heldout > self.num_distinct:
            raise ConfigError(
                f"num_train={self.num_train!r} + num_heldout={self.num_heldout!r} exceeds the {self.num_distinct} "
                "distinct prompts of these options; ask for fewer prompts, or allow longer ones."
            )

    @property
    @abstractmethod
    def num_distinct(self) -> int:
        """How many distinct prompts the options allow."""

    @abstractmethod
    def random_prompt(self, rng: np.random.Generator) -> str:
        """Draw a prompt; `rng` is advanced in place."""

    @abstractmethod
    def answer(self, prompt: str) -> str:
        """The one right completion of a prompt.

        Raises:
            ValueError: It is no prompt of this task.
        """

    def train_problems(self) -> list[Problem]:
        """Problems to train on, in an order that only the options decide."""
        heldout = {problem.prompt for problem in self.heldout_problems()}
        return self._draw(0, self.num_train, heldout)

    def heldout_problems(self) -> list[Problem]:
        """Problems never trained on, in an order that only the options decide."""
        return self._draw(1, self.num_heldout, excluded=set())

    def score(self, completion: str, answer: str) -> float:
        """1.0 if the completion without surrounding white space equals the answer, else 0.0.

        If `graded`, a wrong one gets the share of the answer's characters, and of the end as one more, that come before
        its first error.

        Example:
            >>> from coba_rl.tasks import make_task
            >>> scan, graded = make_task("prefix-scan"), make_task("prefix-scan", graded=True)
            >>> scan.score(" 127\\n", "127"), scan.score("12", "127"), graded.score("12", "127")
            (1.0, 0.0, 0.5)
        """
        text = completion.strip()
        if text == answer:
            return 1.0
        if not self.graded:
            return 0.0
        errors = (i for i, (a, b) in enumerate(zip(text, answer, strict=False)) if a != b)
        return next(errors, min(len(text), len(answer))) / (len(answer) + 1)

    def _draw(self, stream: int, count: int, excluded: set[Prompt]) -> list[Problem]:
        """Draw `count` distinct prompts outside `excluded` from an independent stream of the seed."""
        rng = np.random.default_rng([self.seed, stream])
        prompts: dict[str, None] = {}  # a set that remembers the order
        while len(prompts) < count:
            prompt = self.random_prompt(rng)
            if prompt not in excluded:
                prompts[prompt] = None
        return [Problem(content_id(p), p, self.answer(p), data_source=self.name) for p in prompts]


def make_embedded(task: str, /, **options: Any) -> EmbeddedTask:
    """As `coba_rl.tasks.make_task`, for embedded tasks only.

    Raises:
        OptionError: No such task, one that is not embedded, an option that it does not have.
        ConfigError: Options that do not fit together.

    Example:
        >>> make_embedded("prefix-scan", num_train=3).regime
        'hard'
    """
    return plugins.make(task, TASKS, options, kind="task", base=EmbeddedTask)
