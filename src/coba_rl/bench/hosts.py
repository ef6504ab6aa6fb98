"""What the TRL host costs: trainers that take turns, step by step, in one process. Imports torch and trl."""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from coba_rl.bench.race import Part, Progress, row_of
from coba_rl.evaluate import mean_estimate
from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

_WARM_UP = 2  # steps of each trainer that are not counted


class _Turns:
    """Who of several threads may run: in every round each once, in random order, so that no place is an advantage."""

    def __init__(self, names: list[str], rounds: int, progress: Progress) -> None:
        draw, self._progress = random.Random(0), progress
        self._order = [name for _ in range(rounds) for name in draw.sample(names, len(names))]
        self._turn, self._changed = 0, threading.Condition()
        self.error: BaseException | None = None

    def wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self._order[self._turn] == name)
        if self.error is not None:
            raise RuntimeError("another trainer failed")

    def pass_on(self) -> None:
        with self._changed:
            self._turn += 1
            self._progress(self._turn, len(self._order))
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()


class _Clock(TrainerCallback):
    """Times a trainer from the start of a step to the start of the next, and lets the others in between."""

    def __init__(self, name: str, turns: _Turns) -> None:
        self._name, self._turns = name, turns
        self._start: float | None = None
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._start is not None:
            self._stop()
            self._turns.pass_on()
            self._turns.wait(self._name)
        self._start = time.process_time()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._start is not None
        self.seconds.append(time.process_time() - self._start)


CONTENDERS: dict[str, dict[str, Any] | None] = {
    "TRL": None,
    "TRL again": None,
    "uniform": {"strategy": "uniform"},
    "uniform, pilot of 4": {"strategy": "uniform", "pilot": 4},
    "coba": {"strategy": "coba"},
    "coba, pilot of 4": {"strategy": "coba", "pilot": 4},
}
"""Name → options; None: stock TRL. TRL against itself shows what the measurement can tell apart. `uniform` in two waves has
the rollouts of one: what it takes longer is the price of the second wave."""


PAIRS = [
    ("TRL again", "TRL"),
    ("uniform", "TRL"),
    ("coba", "uniform"),
    ("uniform, pilot of 4", "uniform"),
    ("coba, pilot of 4", "coba"),
]


def measure_hosts(num_steps: int, num_prompts: int, progress: Progress = lambda *_: None) -> Part:
    """Stock TRL, `uniform` and `coba`, in one wave and in two, at equal rollouts, the policy held where it starts.

    Args:
        num_steps: Steps of each trainer that count.
        num_prompts: Prompts of a step, with 16 rollouts on average.
        progress: Called after each step of a trainer, those that do not count included.
    """
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    rounds = _WARM_UP + num_steps
    turns = _Turns(list(CONTENDERS), rounds, progress)
    clocks = {name: _Clock(name, turns) for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(CONTENDERS)) as threads:
        trainers = {
            name: _make_trainer(options, Path(folder) / name, rounds, num_prompts, clocks[name])
            for name, options in CONTENDERS.items()
        }
        for name, trainer in trainers.items():
            threads.submit(_train, name, trainer, turns)
    if turns.error is not None:
        raise turns.error
    seconds = {name: clock.seconds[_WARM_UP:] for name, clock in clocks.items()}
    part = Part(
        "hosts",
        "Hosts",
        f"A step of the embedded policy through TRL: {num_prompts} prompts, {16 * num_prompts:,} rollouts, one core. "
        "Ratio: time to that of stock TRL; `A to B`: of A to that of B.",
    )
    part.rows = [row_of(name, num_prompts, values, seconds["TRL"]) for name, values in seconds.items()]
    for name, reference in PAIRS:
        if reference != "TRL":
            part.rows.append(row_of(f"{name} to {reference}", num_prompts, seconds[name], seconds[reference]))
        part.facts |= _overhead(f"{name} to {reference}", seconds[name], seconds[reference])
    return part


def _overhead(pair: str, seconds: list[float], reference: list[float]) -> dict[str, float]:
    """Mean of the steps' ratios (geometric), and the ends of its 95 % bootstrap interval, as overhead in percent."""
    ratio = mean_estimate(np.log(np.array(seconds) / np.array(reference)))
    ends = {"mean": ratio.value, "at least": ratio.low, "at most": ratio.high}
    return {f"{pair}: overhead, {end}, %": 100.0 * math.expm1(value) for end, value in ends.items()}


def _train(name: str, trainer: Any, turns: _Turns) -> None:
    try:
        turns.wait(name)
        torch.set_num_threads(1)  # counts for the thread that calls it
        trainer.train()
        turns.pass_on()
    except BaseException as error:
        turns.fail(error)


def _make_trainer(
    options: dict[str, Any] | None, folder: Path, num_steps: int, num_prompts: int, clock: _Clock
) -> GRPOTrainer:
    task = PrefixScan(regime="hard")
    rows = [{"prompt": p.prompt, "answer": p.answer, "prompt_id": p.prompt_id} for p in task.train_problems()]
    source = str(policy_path("hard"))
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": num_steps,
        "num_generations": 16,
        "per_device_train_batch_size": 16 * num_prompts,
        "max_completion_length": task.max_completion_length,
        "learning_rate": 0.0,  # every trainer keeps sampling from the same policy
        "beta": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
    }

    def correct(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
        return [task.score(text, truth) for text, truth in zip(completions, answer, strict=True)]

    trainer_class: Any = GRPOTrainer if options is None else CobaGRPOTrainer
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, trust_remote_code=False),
        reward_funcs=correct,
        args=GRPOConfig(**settings) if options is None else CobaGRPOConfig(**settings, **options),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(source, padding_side="left", trust_remote_code=False),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
