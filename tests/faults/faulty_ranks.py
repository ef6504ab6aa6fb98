"""Run under torchrun: trains with rewards that go wrong in one process, and writes what each process saw.

Usage: faulty_ranks.py MODEL_FOLDER OUTPUT_FOLDER FAULT…

none, late, unjudged (None), nan     one after another
die, raise                           the process ends by SIGKILL, or by an error, in its third generation
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "trl"))

from trl_tiny import Tiny, prompts, text_of, varied

from coba_rl.runs.trl_run import leave_process_group

RANK = int(os.environ["RANK"])
FAULTY = int(os.environ["WORLD_SIZE"]) - 1
OPTIONS: dict[str, Any] = {
    "max_steps": 4,
    "min_budget": 1,
    "max_budget": 12,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
}


class Reward:
    """`varied`, with a fault in the last process."""

    __name__ = "reward"

    def __init__(self, fault: str) -> None:
        self.fault, self.calls = fault, 0

    def __call__(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
        self.calls += 1
        rewards: list[float | None] = [*varied(prompts, completions)]
        if RANK != FAULTY:
            return rewards
        if self.fault == "late":
            time.sleep(0.5)
        elif self.fault in ("unjudged", "nan"):
            return [None if self.fault == "unjudged" else math.nan] * len(rewards)
        elif self.calls == 3 and self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.calls == 3 and self.fault == "raise":
            raise RuntimeError("the verifier is gone")
        return rewards


def train(tiny: Tiny, fault: str) -> dict[str, Any]:
    size = 3 * 2 * (FAULTY + 1)  # three generations an epoch
    run = tiny.train(rewards=Reward(fault), data=prompts(size), **OPTIONS)
    metrics = [{k: v for k, v in log.items() if k.startswith("coba/")} for log in run.logs if "loss" in log]
    return {
        "budgets": [generation["allocation"].as_dict() for generation in run.generations],
        "rates": [generation["allocation"].pass_rates.tolist() for generation in run.generations],
        "rewards": [generation["rewards"].flatten().tolist() for generation in run.generations],
        "texts": [[text_of(text) for text in generation["prompts"]] for generation in run.generations],
        "metrics": metrics,
        "weights": {name: value.tolist() for name, value in run.weights.items()},
    }


if __name__ == "__main__":
    model, output, *faults = sys.argv[1:]
    tiny = Tiny(Path(output), model_folder=Path(model))
    seen = {fault: train(tiny, fault) for fault in faults}
    Path(output, f"rank-{RANK}.json").write_text(json.dumps(seen), encoding="utf-8")
    leave_process_group()
