"""Tasks: prompts with verifiers, by name."""

from __future__ import annotations

from typing import Any, Literal, get_args

from coba_rl import plugins
from coba_rl.tasks.base import Problem, Task, content_id

TASKS: dict[str, str] = {
    "prefix-scan": "coba_rl.tasks.prefix_scan:PrefixScan",
    "string-transform": "coba_rl.tasks.string_transform:StringTransform",
    "math": "coba_rl.tasks.math:MathTask",
}
"""Where the built-in tasks are, by name; each is imported when it is made."""

EmbeddedName = Literal["prefix-scan", "string-transform"]
EMBEDDED: tuple[str, ...] = get_args(EmbeddedName)
"""Those that bring their prompts and a policy to start from, see `coba_rl.tasks.embedded`."""

__all__ = ["EMBEDDED", "TASKS", "EmbeddedName", "Problem", "Task", "content_id", "make_task"]


def make_task(task: str | Task, /, **options: Any) -> Task:
    """A task from its name and options, as a section of a configuration gives them.

    Args:
        task: Name of a built-in task, `"package.module:Class"`, or a `Task` object.
        **options: Options of the task, see its fields.

    Raises:
        OptionError: No such task, an option that it does not have, a value it cannot take, or options beside an object.
        ConfigError: Options that do not fit together.

    Example:
        >>> make_task("prefix-scan", num_heldout=4).score("127", answer="127")
        1.0
    """
    return plugins.make(task, TASKS, options, kind="task", base=Task)
