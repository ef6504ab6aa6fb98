"""Spend rollouts where they teach: per-prompt rollout budgets for GRPO-style training.

One step, whatever the trainer:

    >>> from coba_rl import BudgetAllocator
    >>> allocator = BudgetAllocator("coba", bounds=(2, 128))
    >>> allocation = allocator.allocate(["a", "b", "c"], total=48)        # before the rollouts
    >>> allocation.budgets.tolist()
    [16, 16, 16]
    >>> prompt_of_each = [allocation.prompt_ids[i] for i in allocation.repeat_index]
    >>> successes = [1.0] * 16 + [0.0] * 16 + [1.0, 0.0] * 8              # what the verifier said
    >>> allocator.observe(prompt_of_each, successes)                      # after them
    >>> round(allocator.metrics()["coba/success_per_prompt"], 3)
    0.5

`coba_rl.allocation` decides; `coba_rl.hosts.trl` and `coba_rl.hosts.verl` put it into trainers;
`coba_rl.tasks` has prompts with verifiers; `coba-rl --help` shows the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coba_rl.allocation import STRATEGIES, Allocation, BudgetAllocator, GainStrategy, Strategy
    from coba_rl.errors import (
        CobaError,
        ConfigError,
        DatasetError,
        InfeasibleBudgetError,
        OptionError,
        StateError,
        UnknownStrategyError,
    )

_ALLOCATION = ("STRATEGIES", "Allocation", "BudgetAllocator", "GainStrategy", "Strategy")
_ERRORS = (
    "CobaError",
    "ConfigError",
    "DatasetError",
    "InfeasibleBudgetError",
    "OptionError",
    "StateError",
    "UnknownStrategyError",
)
_HOME = dict.fromkeys(_ALLOCATION, "coba_rl.allocation") | dict.fromkeys(_ERRORS, "coba_rl.errors")

__all__ = [
    "STRATEGIES",
    "Allocation",
    "BudgetAllocator",
    "CobaError",
    "ConfigError",
    "DatasetError",
    "GainStrategy",
    "InfeasibleBudgetError",
    "OptionError",
    "StateError",
    "Strategy",
    "UnknownStrategyError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coba_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
