"""What a part of one's own must satisfy, as tests to inherit.

    from coba_rl.testing import StrategyConformance

    class TestMine(StrategyConformance):
        def make(self):
            return Mine(sharpness=2.0)

Plain asserts on seeded data: any test runner that collects `test_` methods of a `Test` class can run them. A part that
breaks a promise on purpose exempts itself by setting that test to None in the subclass, beside a comment that says why.
"""

from coba_rl.testing.estimators import EstimatorConformance
from coba_rl.testing.strategies import StrategyConformance
from coba_rl.testing.tasks import TaskConformance

__all__ = ["EstimatorConformance", "StrategyConformance", "TaskConformance"]
