"""What a part of one's own must satisfy, as tests to inherit.

    from coba_rl.testing import StrategyConformance

    class TestMine(StrategyConformance):
        def make(self):
            return Mine(sharpness=2.0)

Plain asserts on seeded data: any test runner that collects `test_` methods of a `Test` class can run them. A part that
breaks a promise on purpose exempts itself by setting that test to None in the subclass, beside a comment that says why.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coba_rl.testing.estimators import EstimatorConformance
    from coba_rl.testing.hosts import FakeTrainer, HostConformance
    from coba_rl.testing.strategies import StrategyConformance
    from coba_rl.testing.tasks import TaskConformance

_HOME = {
    "EstimatorConformance": "estimators",
    "FakeTrainer": "hosts",
    "HostConformance": "hosts",
    "StrategyConformance": "strategies",
    "TaskConformance": "tasks",
}

__all__ = ["EstimatorConformance", "FakeTrainer", "HostConformance", "StrategyConformance", "TaskConformance"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coba_rl.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"coba_rl.testing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
