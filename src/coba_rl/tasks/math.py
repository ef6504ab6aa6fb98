"""Mathematics: DAPO-Math-17K or any data set like it to train on, five benchmarks to evaluate with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from coba_rl.errors import ConfigError, DatasetError, suggestion
from coba_rl.tasks.base import Problem, Task
from coba_rl.tasks.math_data import Layout, Loaded, load_problems
from coba_rl.tasks.math_verifier import score_answer


@dataclass(frozen=True)
class MathTask(Task):
    """Maths problems whose final answers are judged by math-verify.

    The layouts of verl (`prompt` as chat messages, `reward_model.ground_truth`) and plain ones (`prompt`, `question`
    or `problem` with `answer` or a boxed `solution`) are read; an answer may also be a worked solution with a box or
    `#### 72`, or a list or dictionary stored as text. Repeated prompts are dropped; ids come from the content, so that
    re-ordering the file changes nothing. Answers that cannot be judged are counted, and a few named by row.

    Raises:
        ConfigError: `heldout_fraction` is out of range.

    Example:
        >>> task = MathTask(data="train.parquet")
        >>> task.score("Answer: $17$", "17"), task.score("Answer: $18$", "17")
        (1.0, 0.0)
    """

    name: ClassVar[str] = "math"
    max_prompt_length: ClassVar[int] = 2048
    max_completion_length: ClassVar[int] = 4096

    data: str = "BytedTsinghua-SIA/DAPO-Math-17k"
    """A local Parquet, JSONL, JSON or CSV file, or a data set on the Hugging Face hub."""
    split: str = "train"
    """Split on the hub; a local file is one split."""
    config: str | None = None
    """Configuration on the hub, None for the only one."""
    heldout_fraction: float = 0.0
    """Share of the prompts never trained on, in [0, 1), chosen by their content."""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout_fraction < 1:
            raise ConfigError(
                f"heldout_fraction={self.heldout_fraction!r}: expected 0 ≤ heldout_fraction < 1."
            )

    @cached_property
    def loaded(self) -> Loaded:
        """The data set, read on first use: problems, and the numbers of rows repeated, in conflict or unanswered.

        Raises:
            DatasetError: The data set is missing, unreadable, empty, or lacks prompts or answers that can be judged.
        """
        return load_problems(self.data, Layout(), split=self.split, config=self.config)

    def train_problems(self) -> list[Problem]:
        """Problems to train on, in the order of the data set."""
        problems = [problem for problem in self.loaded.problems if not self._is_heldout(problem)]
        if not problems:
            raise DatasetError(
                f"heldout_fraction={self.heldout_fraction!r} leaves none of the {len(self.loaded.problems)} prompts of "
                f"{self.data!r} to train on: expected at least one; lower it."
            )
        return problems

    def heldout_problems(self) -> list[Problem]:
        """Problems never trained on, in the order of the data set; none unless `heldout_fraction` asks for them."""
        return [problem for problem in self.loaded.problems if self._is_heldout(problem)]

    def score(self, completion: str, answer: str) -> float | None:
        """1.0 for a right final answer, 0.0 for a wrong or missing one, None for a ground truth beyond parsing."""
        return score_answer(completion, answer)

    def _is_heldout(self, problem: Problem) -> bool:
        # The id is a uniform hash of the content: the same prompts are held out in any order, and in a larger file.
        return int(problem.prompt_id[:8], 16) < self.heldout_fraction * 2**32


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark is on the hub and which of its columns hold what."""

    hub_id: str
    split: str
    layout: Layout
    config: str | None = None


BENCHMARKS = {
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "train", Layout(("problem",), ("answer",))),
    "aime25": Benchmark("math-ai/aime25", "test", Layout(("problem",), ("answer",))),
    "amc23": Benchmark("math-ai/amc23", "test", Layout(("question",), ("answer",))),
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", Layout(("problem",), ("answer",))),
    "olympiadbench": Benchmark(
        "Hothan/OlympiadBench",
        "train",
        Layout(("question",), ("final_answer",), context="context"),
        config="OE_TO_maths_en_COMP",
    ),
}
"""The five benchmarks; of OlympiadBench the open-ended, text-only, English competition problems."""


def load_benchmark(name: str, path: str | Path | None = None) -> list[Problem]:
    """Problems of a benchmark, each a chat message that asks for a boxed final answer.

    Args:
        name: `aime24`, `aime25`, `amc23`, `math500` or `olympiadbench`; case and punctuation do not matter.
        path: A local file with the columns of the hub's, None to load from the hub.

    Raises:
        ConfigError: Unknown name.
        DatasetError: The data set is missing, unreadable or of another layout.

    Example:
        >>> load_benchmark("AIME2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        coba_rl.errors.ConfigError: unknown benchmark 'AIME2'. Did you mean 'aime25'? Known: aime24, ...
    """
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if key not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {name!r}. {suggestion(key, BENCHMARKS)}")
    benchmark = BENCHMARKS[key]
    source = benchmark.hub_id if path is None else path
    return load_problems(
        source, benchmark.layout, split=benchmark.split, config=benchmark.config, name=key
    ).problems
