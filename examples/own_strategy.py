"""A strategy of one's own, against even budgets in the lab.

    python examples/own_strategy.py

trains the embedded policy twice for a few steps, on one core. In any trainer the strategy is
`strategy="own_strategy:Frontier"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coba_rl import Strategy
from coba_rl.allocation.proportional import proportional
from coba_rl.lab.config import LabConfig
from coba_rl.lab.run import LabRun


@dataclass(eq=False, kw_only=True)
class Frontier(Strategy):
    """Rollouts in proportion to (p(1−p))^sharpness: to what the policy sometimes solves."""

    name: ClassVar[str] = "frontier"

    sharpness: float = 1.0
    """0 gives even budgets; the larger, the fewer prompts get the rollouts."""

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return proportional((p_P * (1.0 - p_P)) ** self.sharpness, total, low, high)


def main() -> None:
    for strategy, options in (
        ("uniform", {}),
        ("own_strategy:Frontier", {"sharpness": 0.5, "estimator": "ability"}),
    ):
        config = LabConfig(
            strategy=strategy,
            options=options,
            train_prompts=128,
            prompts_per_step=32,
            steps=16,
            evaluate_every=16,
        )
        result = LabRun(config).run()
        (_, before), (_, after) = result.curve[0], result.curve[-1]
        tokens = sum(step["tokens"] for step in result.steps)
        print(f"{strategy}: held-out accuracy {before:.3f} -> {after:.3f}, {tokens:,.0f} tokens")
    print("One run each says little: a study compares over seeds, see coba-rl study --help.")


if __name__ == "__main__":
    main()
