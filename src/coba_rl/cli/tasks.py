"""Tasks and policies by the names used in configurations."""

from __future__ import annotations

from coba_rl.cli.config import RunConfig, TaskConfig
from coba_rl.errors import ConfigError
from coba_rl.tasks.base import Task


def make_task(config: TaskConfig) -> Task:
    """The task a configuration names."""
    if config.name == "prefix-scan":
        from coba_rl.tasks.prefix_scan import PrefixScan

        return PrefixScan(regime=config.regime)
    from coba_rl.tasks.math import MathTask

    return MathTask(dataset=config.dataset, heldout=config.heldout)


def policy_source(config: RunConfig) -> str:
    """Folder or hub name of the policy; the shipped one of the regime when none is named."""
    if config.policy.model is not None:
        return config.policy.model
    if config.task.name != "prefix-scan":
        raise ConfigError(f"task.name={config.task.name!r} needs policy.model: a folder or hub name.")
    from coba_rl.tasks.policy import policy_path

    return str(policy_path(config.task.regime))
