"""Tasks by name, by module, and as objects; and the shipped suite of tasks."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from pickle import PicklingError
from typing import Any, ClassVar

import pytest

from coba_rl.errors import ConfigError, OptionError
from coba_rl.tasks import TASKS, Problem, Task, make_task
from coba_rl.tasks.math import MathTask
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan
from coba_rl.testing import TaskConformance

OWN = """
from dataclasses import dataclass
from coba_rl.tasks import Problem, Task

@dataclass(frozen=True)
class Echo(Task):
    name = "echo"
    words: tuple[str, ...] = ("a", "b")

    def train_problems(self):
        return [Problem(word, word, word) for word in self.words]

    def heldout_problems(self):
        return []

    def score(self, completion, answer):
        return float(completion == answer)

class Unfinished(Echo):
    score = Task.score
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_echo_task.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_echo_task", raising=False)
    return "own_echo_task"


def test_built_in_tasks_have_the_name_they_are_found_by() -> None:
    assert {name: make_task(name).name for name in TASKS} == {name: name for name in TASKS}
    assert make_task("prefix-scan", num_train=3, seed=2) == PrefixScan(num_train=3, seed=2)
    assert make_task("math", data="rows.jsonl") == MathTask(data="rows.jsonl")


def test_a_task_from_a_module_of_ones_own(module: str) -> None:
    task = make_task(f"{module}:Echo", words=["x", "y", "z"])
    assert [problem.prompt_id for problem in task.train_problems()] == ["x", "y", "z"]
    with pytest.raises(OptionError, match=r"has no option 'word'\. Did you mean 'words'"):
        make_task(f"{module}:Echo", word=["x"])
    with pytest.raises(OptionError, match="words='x': expected a list, each text"):
        make_task(f"{module}:Echo", words="x")
    with pytest.raises(OptionError, match="does not define score"):
        make_task(f"{module}:Unfinished")


@dataclass(frozen=True)
class Nothing(Task):
    def train_problems(self) -> list[Problem]:
        return []

    def heldout_problems(self) -> list[Problem]:
        return []

    def score(self, completion: str, answer: str) -> float | None:
        return None


def test_an_object_is_the_task_and_has_its_options_already() -> None:
    task = Nothing()
    assert make_task(task) is task
    with pytest.raises(OptionError, match="options \\['seed'\\] were given beside a Task object"):
        make_task(task, seed=1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("prefix-scam", {}, "Unknown task 'prefix-scam'. Did you mean 'prefix-scan'"),
        ("prefix-scan", {"num_trains": 3}, "Task 'prefix-scan' has no option 'num_trains'. Did you mean 'num_train'"),
        ("prefix-scan", {"seed": "1"}, "seed='1': expected a whole number"),
        ("math", {"heldout_fraction": "half"}, "heldout_fraction='half': expected a finite number"),
        ("coba_rl.tasks.base:Problem", {}, "is not a subclass of coba_rl.tasks.base.Task"),
        (3, {}, 'task=3: expected a name, "package.module:Name", or an object'),
    ],
)  # fmt: skip
def test_a_wrong_name_or_option_says_what_is_expected(
    name: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        make_task(name, **options)
    assert message in str(caught.value)


def test_options_that_do_not_fit_together_are_the_tasks_own_error() -> None:
    with pytest.raises(ConfigError, match="num_train=0"):
        make_task("prefix-scan", num_train=0)


def test_a_task_that_is_not_embedded_has_no_policy() -> None:
    with pytest.raises(
        OptionError, match=r"'math' is not a subclass of coba_rl\.tasks\.embedded\.EmbeddedTask"
    ):
        policy_path("hard", "math")


def test_the_table_of_tasks_imports_none_of_them() -> None:
    code = (
        "import sys, coba_rl.tasks; print(*sorted(m for m in sys.modules if m.startswith('coba_rl.tasks.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["coba_rl.tasks.base"]


# The suite


class TestPrefixScan(TaskConformance):
    def make(self) -> Task:
        return make_task("prefix-scan", num_train=60, num_heldout=30)


class TestGradedPrefixScan(TaskConformance):
    def make(self) -> Task:
        return make_task("prefix-scan", num_train=60, num_heldout=30, graded=True)


class TestStringTransform(TaskConformance):
    def make(self) -> Task:
        return make_task("string-transform", num_train=60, num_heldout=30)


class TestMath(TaskConformance):
    def make(self) -> Task:
        data = Path(__file__).parent / "data" / "math" / "dapo.jsonl"
        return make_task("math", data=str(data), heldout_fraction=0.3)

    def right_completion(self, problem: Problem) -> str:
        return rf"So the answer is $\boxed{{{problem.answer}}}$."


@dataclass(frozen=True)
class Words(Task):
    name: ClassVar[str] = "words"
    max_prompt_length: ClassVar[int] = 4
    max_completion_length: ClassVar[int] = 4

    def train_problems(self) -> list[Problem]:
        return [Problem("1", "say a", "a"), Problem("2", "say b", "b")]

    def heldout_problems(self) -> list[Problem]:
        return [Problem("3", "say c", "c")]

    def score(self, completion: str, answer: str) -> float | None:
        return float(completion == answer)


class TestWords(TaskConformance):
    def make(self) -> Task:
        return Words()


class _Nameless(Words):
    name = ""


class _Empty(Words):
    def train_problems(self) -> list[Problem]:
        return []


class _Shuffled(Words):
    def train_problems(self) -> list[Problem]:
        return [Problem(str(random.random()), "say a", "a")]


class _OneId(Words):
    def train_problems(self) -> list[Problem]:
        return [Problem("1", "say a", "a"), Problem("1", "say b", "b")]


class _Leaks(Words):
    def heldout_problems(self) -> list[Problem]:
        return [Problem("3", "say a", "a")]


class _Strict(Words):
    def score(self, completion: str, answer: str) -> float | None:
        return 0.0


class _Points(Words):
    def score(self, completion: str, answer: str) -> float | None:
        return 1.0 if completion == answer else float(len(completion))


class _Fickle(Words):
    def score(self, completion: str, answer: str) -> float | None:
        return random.random()


class _Open(Words):
    def __init__(self) -> None:
        object.__setattr__(self, "verdict", lambda text: 1.0)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Nameless, "test_it_says_what_it_is"),
        (Nothing, "test_it_says_what_it_is"),
        (_Empty, "test_there_is_something_to_train_on"),
        (_Shuffled, "test_problems_are_the_same_in_the_same_order_every_time"),
        (_OneId, "test_ids_are_unique"),
        (_Leaks, "test_training_and_heldout_problems_are_disjoint"),
        (_Strict, "test_a_right_completion_scores_1"),
        (_Points, "test_a_score_is_from_0_to_1_or_none"),
        (_Fickle, "test_a_score_is_from_0_to_1_or_none"),
        (_Open, "test_it_can_be_sent_to_another_process"),
    ],
)
def test_the_suite_catches(broken: type[Task], test: str) -> None:
    class TestBroken(TaskConformance):
        def make(self) -> Task:
            return broken()

    with pytest.raises((AssertionError, AttributeError, TypeError, PicklingError)):
        getattr(TestBroken(), test)()
