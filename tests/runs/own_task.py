"""A task of one's own, as a user would write it: which of two digits is larger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coba_rl.tasks import Problem, Task, content_id


@dataclass(frozen=True)
class Larger(Task):
    """`3>8=` has the answer `8`."""

    name: ClassVar[str] = "larger"
    max_prompt_length: ClassVar[int] = 8
    max_completion_length: ClassVar[int] = 3

    first_heldout: int = 8
    """Problems whose first digit is this or more are never trained on."""

    def _problems(self, first: range) -> list[Problem]:
        prompts = [f"{a}>{b}=" for a in first for b in range(10)]
        return [Problem(content_id(prompt), prompt, max(prompt[0], prompt[2])) for prompt in prompts]

    def train_problems(self) -> list[Problem]:
        return self._problems(range(self.first_heldout))

    def heldout_problems(self) -> list[Problem]:
        return self._problems(range(self.first_heldout, 10))

    def score(self, completion: str, answer: str) -> float:
        return float(completion.strip() == answer)
