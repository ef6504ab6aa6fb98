"""Tasks, problems and policies by the names used in configurations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from coba_rl.errors import ConfigError, suggestion
from coba_rl.packages import need
from coba_rl.runs.config import RunConfig, TaskConfig
from coba_rl.tasks import EMBEDDED, Problem, Task, make_task
from coba_rl.tasks.embedded import EmbeddedTask

logger = logging.getLogger(__name__)


def configured_task(config: TaskConfig) -> Task:
    """The task of a run.

    Raises:
        OptionError: No such task, or an option that it does not have.
        ConfigError: Options that do not fit together, or a package that is not installed.

    Example:
        >>> configured_task(TaskConfig(num_train=8)).num_train
        8
    """
    if config.name == "math":
        need(["math_verify"], "task.name='math'")
    return make_task(config.name, **config.options())


def heldout_problems(config: TaskConfig, task: Task) -> list[Problem]:
    """Problems that the run is measured on and never trained on; may be empty."""
    if config.heldout is None:
        return task.heldout_problems()
    return load_problems(config.heldout)[1]


def load_problems(name: str) -> tuple[Task, list[Problem]]:
    """The task that judges, and the problems, by the name given on the command line.

    Args:
        name: An embedded task, a benchmark, `BENCHMARK=FILE` for a local copy of one, or a data file.

    Raises:
        ConfigError: No such task, or a package that it needs is not installed.
        DatasetError: No such file, or one that cannot be used.
    """
    if name in EMBEDDED:
        task = make_task(name)
        return task, task.heldout_problems()
    need(["math_verify"], f"task {name!r}")
    from coba_rl.tasks.math import BENCHMARKS, MathTask, load_benchmark

    benchmark, has_file, file = name.partition("=")
    if benchmark in BENCHMARKS or (has_file and not Path(name).exists()):
        return MathTask(), load_benchmark(benchmark, path=file or None)
    if not Path(name).suffix and "/" not in name:
        raise ConfigError(
            f"unknown task {name!r}. {suggestion(name, [*EMBEDDED, *BENCHMARKS])} Or a data file."
        )
    math_task = MathTask(data=name)
    return math_task, math_task.train_problems()


def without(problems: Sequence[Problem], heldout: Sequence[Problem]) -> list[Problem]:
    """The problems that are not among the held-out ones."""
    ids = {problem.prompt_id for problem in heldout}
    return [problem for problem in problems if problem.prompt_id not in ids]


def without_overlong(
    problems: Sequence[Problem], config: RunConfig, task: Task, num_tokens: Callable[[Problem], int]
) -> list[Problem]:
    """The problems whose prompt is no longer than the run allows; how many are left out is logged as a warning."""
    longest = config.training.max_prompt_length or task.max_prompt_length
    kept = [problem for problem in problems if num_tokens(problem) <= longest]
    if len(kept) < len(problems):
        logger.warning(
            "%d of %d prompts are longer than %d tokens and were left out; training.max_prompt_length sets the limit.",
            *(len(problems) - len(kept), len(problems), longest),
        )
    return kept


def policy_source(config: RunConfig, task: Task) -> str:
    """Folder or hub name of the policy; the shipped one of the regime when an embedded task has none named."""
    if config.policy.model is None and isinstance(task, EmbeddedTask):
        from coba_rl.tasks.policy import policy_path

        return str(policy_path(task.regime, task.name))
    return str(config.policy.model)
