"""What every task must satisfy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from multiprocessing.reduction import ForkingPickler

from coba_rl.tasks import Problem, Task

_NUM_JUDGED = 50


class TaskConformance(ABC):
    """Tests of one task. Subclass it, name the subclass `Test…`, and write `make`.

    Example:
        >>> from coba_rl.tasks import make_task
        >>> class TestScan(TaskConformance):
        ...     def make(self):
        ...         return make_task("prefix-scan", num_train=20, num_heldout=5)
        >>> TestScan().test_training_and_heldout_problems_are_disjoint()
    """

    completions: tuple[str, ...] = ("", "0", "no idea", "(", "…\n\n", "9" * 1000)
    """What every answer is judged against."""

    @abstractmethod
    def make(self) -> Task:
        """The task with the options to test."""

    def right_completion(self, problem: Problem) -> str | None:
        """A completion that is right, None where none is known; the answer as it stands unless overridden."""
        return problem.answer

    def test_it_says_what_it_is(self) -> None:
        task = self.make()
        assert isinstance(task.name, str), f"name={task.name!r}: expected text in a class variable"
        assert task.name, "name is empty"
        for limit in ("max_prompt_length", "max_completion_length"):
            value = getattr(task, limit)
            assert isinstance(value, int), f"{limit}={value!r}: expected tokens, a whole number"
            assert value > 0, f"{limit}={value!r}: expected at least 1 token"

    def test_there_is_something_to_train_on(self) -> None:
        assert self.make().train_problems(), "no problem to train on"

    def test_problems_are_the_same_in_the_same_order_every_time(self) -> None:
        first, second = self.make(), self.make()
        assert first.train_problems() == second.train_problems() == first.train_problems()
        assert first.heldout_problems() == second.heldout_problems() == first.heldout_problems()

    def test_ids_are_unique(self) -> None:
        task = self.make()
        for problems in (task.train_problems(), task.heldout_problems()):
            count = Counter(problem.prompt_id for problem in problems)
            repeated = [prompt_id for prompt_id, times in count.items() if times > 1]
            assert not repeated, f"ids of several problems: {repeated}"

    def test_training_and_heldout_problems_are_disjoint(self) -> None:
        task = self.make()
        training, heldout = task.train_problems(), task.heldout_problems()
        for what in ("prompt_id", "prompt"):
            both = {str(getattr(p, what)) for p in training} & {str(getattr(p, what)) for p in heldout}
            assert not both, f"trained on and held out: {what} {sorted(both)[0]!r}"

    def test_a_right_completion_scores_1(self) -> None:
        task = self.make()
        for problem in _some(task):
            completion = self.right_completion(problem)
            if completion is not None:
                score = task.score(completion, problem.answer)
                assert score == 1.0, f"{completion!r} scores {score!r} for the answer {problem.answer!r}"

    def test_a_score_is_from_0_to_1_or_none(self) -> None:
        task = self.make()
        for problem in _some(task):
            for completion in self.completions:
                score = task.score(completion, problem.answer)
                assert score is None or 0.0 <= score <= 1.0, f"{completion!r} scores {score!r}"
                assert task.score(completion, problem.answer) == score, f"{completion!r} scores differently"

    def test_it_can_be_sent_to_another_process(self) -> None:
        ForkingPickler.dumps(self.make())  # raises otherwise


def _some(task: Task) -> list[Problem]:
    return [*task.train_problems()[:_NUM_JUDGED], *task.heldout_problems()[:_NUM_JUDGED]]
