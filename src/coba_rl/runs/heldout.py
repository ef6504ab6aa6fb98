"""Held-out accuracy of a run: when it is measured, and where it is written. Imports torch and trl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import TrainerCallback

from coba_rl.evaluate import mean_estimate, prompt_accuracy
from coba_rl.hosts.trl import CobaGRPOTrainer
from coba_rl.hosts.trl.heldout import engine, heldout_successes
from coba_rl.records import EvaluationRecord
from coba_rl.runs.config import RunConfig
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.progress import Progress
from coba_rl.tasks.base import Problem, Task


@dataclass(eq=False)
class HeldoutCallback(TrainerCallback):
    """Measures held-out accuracy before the first step, every few steps as configured, and after the last one.

    A measurement is written before the checkpoint of its step, so that a complete checkpoint vouches for it.

    Args:
        trainer: Whose policy is measured, by its own generation.
        task: Its `score` judges.
        problems: The held-out problems; with none, nothing is measured.
        config: The run's configuration.
        folder: Takes the records.
        progress: Hears how far a measurement is, and what it gave.
    """

    trainer: CobaGRPOTrainer
    task: Task
    problems: Sequence[Problem]
    config: RunConfig
    folder: RunFolder
    progress: Progress
    seconds: float = 0.0
    """Spent on measurements so far."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        training, every = self.config.training, self.config.evaluation.every
        step, part = divmod(state.global_step, training.updates_per_step)
        if part == 0 and (step == training.steps or (every and step % every == 0)):
            self._measure(step)

    def _measure(self, step: int) -> None:
        if not self.problems:
            return
        start, settings = time.monotonic(), self.config.evaluation
        successes_PK = heldout_successes(
            self.trainer,
            self.task,
            self.problems,
            **settings.model_dump(exclude={"every"}),
            seed=self.config.training.seed,
            progress=self.progress.measuring,
        )
        if self.trainer.accelerator.is_main_process:
            self._record(step, successes_PK)
        self.seconds += time.monotonic() - start

    def _record(self, step: int, successes_PK: np.ndarray) -> None:
        accuracy_P = prompt_accuracy(successes_PK)
        ids = [problem.prompt_id for problem in self.problems]
        accuracy = dict(zip(ids, accuracy_P.tolist(), strict=True))
        self.folder.log_heldout(EvaluationRecord(step, engine(self.trainer), accuracy))
        logged: dict[str, Any] = {"heldout/unjudged": int(np.isnan(successes_PK).sum())}
        judged_P = accuracy_P[~np.isnan(accuracy_P)]
        if judged_P.size:
            value, low, high = mean_estimate(judged_P).as_dict().values()
            logged |= {"heldout/accuracy": value, "heldout/low": low, "heldout/high": high}
        self.folder.log_metrics({"step": step, **logged})
        self.progress.measured(logged.get("heldout/accuracy"))
