"""Run by `test_processes.py` under torchrun: trains, resumes, and writes what this process saw.

Usage: trl_two_processes.py MODEL_FOLDER OUTPUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from transformers import TrainerCallback
from trl_tiny import Run, Tiny, prompts

from coba_rl.hosts.trl.heldout import heldout_successes
from coba_rl.runs.trl_run import leave_process_group
from coba_rl.tasks.base import Problem, Task

NUM_PROMPTS = 27  # three generations an epoch
RESUME_STEP = 12  # amid the second epoch
OPTIONS: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": RESUME_STEP,
    "max_steps": 18,
    "min_budget": 1,
    "max_budget": 12,
    "num_generations": 4,
    "per_device_train_batch_size": 6,  # 18 rows a process: a group of the data crosses the processes
    "steps_per_generation": 3,
}


def graded(prompts: list[str], **_: Any) -> list[float]:
    """A success that depends on the prompt alone, so that histories do not depend on sampling."""
    return [(sum(map(ord, prompt)) % 7 + 1) / 8 for prompt in prompts]


def mixed(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Differs from rollout to rollout, so that there are advantages to compare."""
    return [len(completion) / 8 for completion in completions]


class Length(Task):
    """Success is how long a completion is; what was judged here is counted."""

    num_judged = 0

    def train_problems(self) -> list[Problem]:
        return []

    def heldout_problems(self) -> list[Problem]:
        return [Problem(text, text, "") for text in prompts(5)["prompt"]]

    def score(self, completion: str, answer: str) -> float:
        self.num_judged += 1
        return len(completion) / 8


class Measurements(TrainerCallback):
    """Measures after every sixth step."""

    def __init__(self, run: Run) -> None:
        self.run, self.task, self.successes = run, Length(), []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 6 == 0:
            problems = self.task.heldout_problems()
            found = heldout_successes(self.run.trainer, self.task, problems, num_samples=3, batch_size=4)
            self.successes.append(found.tolist())


def main(model_folder: Path, output: Path) -> None:
    tiny = Tiny(output, model_folder=model_folder)
    shared = {
        "rewards": [graded, mixed],
        "data": prompts(NUM_PROMPTS),
        "output_dir": str(output / "run"),
        **OPTIONS,
    }
    straight = tiny.train(**shared)
    measured = tiny.trainer(**shared)
    measurements = Measurements(measured)
    measured.trainer.add_callback(measurements)
    measured.trainer.train()
    resumed = tiny.train(resume_from=str(output / "run" / f"checkpoint-{RESUME_STEP}"), **shared)
    # Waves of 9 and of 27 rows: in neither do the processes have as many.
    waves = tiny.train(**{**shared, "output_dir": str(output / "waves"), "pilot": 1})
    weighted = tiny.train(**{**shared, "output_dir": str(output / "weighted"), "allocation_mode": "weights"})
    rank = straight.trainer.accelerator.process_index
    seen = {
        "num_processes": straight.trainer.accelerator.num_processes,
        "num_logged": len(straight.records),
        "budgets": [generation["allocation"].budgets.tolist() for generation in straight.generations],
        "ids": [generation["allocation"].prompt_ids for generation in straight.generations],
        "prompts": [generation["prompts"] for generation in straight.generations],
        "advantages": [generation["advantages"].tolist() for generation in straight.generations],
        "rewards": [generation["rewards"].tolist() for generation in straight.generations],
        "state": straight.trainer.allocator.state_dict(),
        "weights": {name: value.tolist() for name, value in straight.weights.items()},
        "measured_weights": {name: value.tolist() for name, value in measured.weights.items()},
        "heldout": measurements.successes,
        "heldout_judged": measurements.task.num_judged,
        "weighted": [
            {
                "budgets": generation["allocation"].budgets.tolist(),
                "weights": generation["weights"].tolist(),
                "advantages": generation["advantages"].tolist(),
                "rewards": generation["rewards"].tolist(),
            }
            for generation in weighted.generations
        ],
        "waves": [
            {
                "budgets": generation["allocation"].budgets.tolist(),
                "ids": generation["allocation"].prompt_ids,
                "prompts": generation["prompts"],
                "completions": generation["completions"],
                "advantages": generation["advantages"].tolist(),
                "rewards": generation["rewards"].tolist(),
            }
            for generation in waves.generations
        ],
        "wave_state": waves.trainer.allocator.state_dict(),
        "resumed_ids": [generation["allocation"].prompt_ids for generation in resumed.generations],
        "resumed_budgets": [generation["allocation"].budgets.tolist() for generation in resumed.generations],
        "resumed_weights": {name: value.tolist() for name, value in resumed.weights.items()},
    }
    (output / f"rank-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    leave_process_group()
