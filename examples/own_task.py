"""A task of one's own: problems with a verifier, trained on from Python.

    python examples/own_task.py                          # a run folder with its report, in some seconds

The command line takes it by its name, with its fields as options:
`PYTHONPATH=examples coba-rl train --task.name own_task:LastDigit --task.largest 6 --model MODEL`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from coba_rl.runs import RunFolder, load_config, train
from coba_rl.tasks.base import Problem, Task, content_id
from coba_rl.tasks.policy import policy_path


@dataclass(frozen=True)
class LastDigit(Task):
    """The last digit of a sum, written in characters that the embedded policy knows."""

    name: ClassVar[str] = "last-digit"
    max_prompt_length: ClassVar[int] = 8
    max_completion_length: ClassVar[int] = 4

    largest: int = 9
    """Largest number to add, up to 9."""

    def problems(self) -> list[Problem]:
        sums = [(f"{a}+{b}=", (a + b) % 10) for a in range(self.largest + 1) for b in range(self.largest + 1)]
        return [Problem(content_id(prompt), prompt, str(digit), self.name) for prompt, digit in sums]

    def train_problems(self) -> list[Problem]:
        return [problem for i, problem in enumerate(self.problems()) if i % 4]

    def heldout_problems(self) -> list[Problem]:
        return self.problems()[::4]

    def score(self, completion: str, answer: str) -> float | None:
        return float(completion.strip() == answer)


def main(folder: Path) -> None:
    settings = {
        "task": {"name": "own_task:LastDigit", "largest": 9},
        "policy": {"model": str(policy_path("hard"))},
        "training": {"steps": 8, "prompts_per_step": 32, "rollouts_per_prompt": 8, "learning_rate": 3e-4},
    }
    summary = train(load_config(None, settings), RunFolder(folder))
    assert summary is not None  # None in all processes but the first
    print(f"held-out accuracy: gain {summary.heldout.gain}, {summary.rollouts:,} rollouts, in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own-task"))
