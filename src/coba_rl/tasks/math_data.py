"""Rows of a maths data set → problems with an answer, each prompt once.

Repeated prompts are dropped by content: published files repeat their rows (DAPO-Math-17K about a hundred times), and
two copies of a prompt would each carry half of its history of pass rates.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coba_rl.errors import DatasetError
from coba_rl.tasks.base import Problem, Prompt, content_id
from coba_rl.tasks.math_gold import read_gold
from coba_rl.tasks.math_rows import is_hub_name, read_rows
from coba_rl.tasks.math_verifier import can_judge

logger = logging.getLogger(__name__)

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""Added to a bare problem, so that the model knows where the verifier looks."""


@dataclass(frozen=True)
class Layout:
    """Which columns hold what. The first column that is there and filled wins."""

    prompts: tuple[str, ...] = ("prompt", "question", "problem")
    """Text, or chat messages."""
    answers: tuple[str, ...] = ("reward_model", "answer", "final_answer", "ground_truth", "solution")
    """Text, numbers or lists of them; `reward_model` with its `ground_truth`; `solution` with a marked answer."""
    context: str | None = None
    """Text to put before the problem, where a row has one."""

    @property
    def columns(self) -> set[str]:
        """Every column that is read."""
        return {*self.prompts, *self.answers, "data_source", *([self.context] if self.context else [])}


@dataclass(frozen=True)
class Loaded:
    """Problems of one data set, and what was left out on the way.

    Example:
        >>> rows = [{"question": "1+1=", "answer": 2}, {"question": "1+1=", "answer": 2}]
        >>> loaded = problems_from_rows(rows, Layout(), source="sums")
        >>> [problem.answer for problem in loaded.problems], loaded.num_duplicates
        (['2'], 1)
    """

    problems: list[Problem]
    """Unique by prompt, in the order of their first row."""
    num_rows: int
    """Rows read."""
    num_duplicates: int
    """Rows whose prompt an earlier row already had."""
    num_conflicts: int
    """Prompts whose rows give more than one answer; the commonest was kept (of equals, the first in the alphabet)."""
    num_unanswered: int
    """Rows without an answer, left out."""
    unjudgeable: list[str]
    """Problems whose answer the verifier cannot read, each as its first row and the answer; no rollout is judged."""


def load_problems(
    source: str | Path, layout: Layout, *, split: str = "train", config: str | None = None, name: str = ""
) -> Loaded:
    """Read, check and de-duplicate a data set; what was dropped is logged as a warning.

    Args:
        source: A local file (Parquet, JSONL, JSON or CSV), or `owner/name` on the hub.
        layout: The columns to read.
        split: Split on the hub; a local file is one split.
        config: Configuration on the hub, None for the only one.
        name: `data_source` of rows that name none; by default the file's stem or the name on the hub.

    Raises:
        DatasetError: The data set is missing, unreadable, empty, or lacks prompts or answers that can be judged.
        ImportError: The packages of the `math` extra are not installed.
    """
    rows = read_rows(source, layout.columns, layout.prompts, split=split, config=config)
    default_name = str(source) if is_hub_name(source) else Path(source).stem
    loaded = problems_from_rows(rows, layout, source=str(source), name=name or default_name)
    for count, what in (
        (loaded.num_duplicates, f"of {loaded.num_rows} rows repeat a prompt and were dropped"),
        (loaded.num_conflicts, "prompts come with more than one answer; the commonest was kept"),
        (loaded.num_unanswered, f"of {loaded.num_rows} rows have no answer and were left out"),
    ):
        if count:
            logger.warning("%s: %d %s (%d unique prompts).", source, count, what, len(loaded.problems))
    if loaded.unjudgeable:
        logger.warning(
            "%s: %d of %d answers cannot be judged, so no rollout of these prompts will be: %s.",
            *(source, len(loaded.unjudgeable), len(loaded.problems), _some(loaded.unjudgeable)),
        )
    return loaded


def problems_from_rows(
    rows: Iterable[dict[str, Any]], layout: Layout, *, source: str, name: str = ""
) -> Loaded:
    """Turn rows into unique problems.

    Args:
        rows: One dictionary a row.
        layout: The columns to read.
        source: What error messages call the data set.
        name: `data_source` of rows that name none.

    Raises:
        DatasetError: No rows, a row without a prompt, or no row with an answer that can be judged.
    """
    ids: dict[str, str] = {}
    first: dict[str, tuple[int, Prompt, str]] = {}
    answers: dict[str, Counter[str]] = {}
    num_rows = num_unanswered = 0
    for num_rows, row in enumerate(rows, start=1):
        answer = _answer(row, layout)
        if not answer:
            num_unanswered += 1
            continue
        # The raw text is a cheap key: only the first copy of a prompt is converted and hashed.
        key = repr((row.get(layout.context or ""), _first(row, layout.prompts)))
        if key not in ids:
            prompt = _prompt(row, layout, f"row {num_rows} of {source!r}")
            ids[key] = content_id(prompt)
            first.setdefault(ids[key], (num_rows, prompt, str(row.get("data_source") or name)))
        answers.setdefault(ids[key], Counter())[answer] += 1
    _refuse_empty(source, num_rows, num_unanswered, layout)
    problems = [
        Problem(i, prompt, _commonest(answers[i]), data_source)
        for i, (_, prompt, data_source) in first.items()
    ]
    return Loaded(
        problems,
        num_rows=num_rows,
        num_duplicates=num_rows - num_unanswered - len(first),
        num_conflicts=sum(len(counts) > 1 for counts in answers.values()),
        num_unanswered=num_unanswered,
        unjudgeable=_unjudgeable(problems, [row for row, _, _ in first.values()], source),
    )


def _unjudgeable(problems: list[Problem], rows: list[int], source: str) -> list[str]:
    """The problems that no completion can be judged for; never all of them."""
    found = [
        f"row {row} ({problem.answer[:60]!r})"
        for row, problem in zip(rows, problems, strict=True)
        if not can_judge(problem.answer)
    ]
    if len(found) == len(problems):
        raise DatasetError(
            f"none of the {len(problems)} answers of {source!r} can be judged: {_some(found)}; expected short final "
            "answers, as LaTeX or plain text; check which column holds them."
        )
    return found


def _some(found: list[str]) -> str:
    return ", ".join(found[:3]) + (", …" if len(found) > 3 else "")


def _refuse_empty(source: str, num_rows: int, num_unanswered: int, layout: Layout) -> None:
    if num_rows == 0:
        raise DatasetError(
            f"{source!r} has no rows: expected at least one problem; check the file or the split."
        )
    if num_rows == num_unanswered:
        raise DatasetError(
            f"{source!r} has no answers in {num_rows} rows: expected one of the columns {list(layout.answers)} "
            "('reward_model' with its 'ground_truth', 'solution' with a \\boxed{} answer); add one, for the verifier."
        )


def _first(row: dict[str, Any], columns: tuple[str, ...]) -> Any:
    return next((row[column] for column in columns if row.get(column) not in (None, "", [])), None)


def _commonest(counts: Counter[str]) -> str:
    # Not "the first seen": re-ordering the file must not change an answer.
    return min(counts, key=lambda answer: (-counts[answer], answer))


def _prompt(row: dict[str, Any], layout: Layout, where: str) -> Prompt:
    """Chat messages as they are; text becomes one user message that asks for a boxed answer unless it says how."""
    raw = _first(row, layout.prompts)
    if isinstance(raw, list) and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in raw):
        return [{"role": message.get("role") or "user", "content": message["content"]} for message in raw]
    if not isinstance(raw, str) or not raw.strip():
        raise DatasetError(
            f"{where} has no prompt: expected text or chat messages in one of the columns {list(layout.prompts)}, "
            f"found the columns {sorted(row)}; rename a column or remove the row."
        )
    context = row.get(layout.context) if layout.context else None
    text = f"{context}\n{raw}" if context else raw
    if "\\boxed" not in text and "Answer:" not in text:
        text = f"{text}\n{BOXED_INSTRUCTION}"
    return [{"role": "user", "content": text}]


def _answer(row: dict[str, Any], layout: Layout) -> str:
    """The answer as text, empty where the row has none."""
    answers = (read_gold(row.get(column), is_solution=column == "solution") for column in layout.answers)
    return next(filter(None, answers), "")
