"""The embedded policy and task through verl's own entry point, on a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from coba_rl.errors import ConfigError
from coba_rl.files import read_jsonl
from coba_rl.records import EvaluationRecord, RunSummary, read_metrics
from coba_rl.runs.config import (
    AllocationConfig,
    EvaluationConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
    check_config,
)
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.progress import Progress
from coba_rl.runs.summary import conclude
from coba_rl.tasks import content_id
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan


def verl_config(strategy: str, steps: int, seed: int) -> RunConfig:
    """The run of `python -m coba_rl.cli.verl_train`: the embedded task, in sizes that a CPU can do.

    Example:
        >>> verl_config("coba", steps=36, seed=0).training.prompts_per_step
        32
    """
    return RunConfig(
        task=TaskConfig(name="prefix-scan", regime="hard", num_train=256),
        allocation=AllocationConfig(strategy=strategy, min_budget=2, max_budget=128),
        training=TrainingConfig(
            steps=steps, seed=seed, prompts_per_step=32, rollouts_per_prompt=16, learning_rate=5e-4,
            clip_low=0.2, clip_high=0.28, temperature=1.0, save_every=steps,
        ),
        evaluation=EvaluationConfig(every=steps, num_samples=2, temperature=1.0),
    )  # fmt: skip


@dataclass(frozen=True)
class VerlRun:
    """One job in a folder of its own, which is verl's `trainer.default_local_dir`, too.

    Args:
        config: As of `verl_config`, with prefix-scan as its task; what it does not set is as verl has it.
        folder: For data, log, metrics, allocations, checkpoints and summary.
        overrides: Further settings of verl, `key=value`.
    """

    config: RunConfig
    folder: RunFolder
    overrides: tuple[str, ...] = ()

    @property
    def task(self) -> PrefixScan:
        """What is trained on."""
        return PrefixScan(**self.config.task.options())

    def settings(self) -> dict[str, Any]:
        """Over the defaults of verl and of the CPU platform."""
        path, training = self.folder.path, self.config.training
        return {
            "hydra.searchpath": "[pkg://coba_rl.hosts.verl.cpu.conf]",
            "+coba": "cpu",
            "hydra.run.dir": path / "hydra",
            "trainer.v1.trainer_mode": "coba_sync",
            **{f"+algorithm.coba.{key}": value for key, value in self._chosen("allocation").items()},
            **self._data(),
            **self._model(),
            "reward.custom_reward_function.path": "pkg://coba_rl.hosts.verl.rewards",
            "reward.custom_reward_function.name": "prefix_scan",
            "reward.num_workers": 2,
            "trainer.logger": "[console]",
            "trainer.total_training_steps": training.steps,
            "trainer.total_epochs": 1 + training.steps,  # an epoch has a step at least
            "trainer.save_freq": training.save_every,
            "trainer.test_freq": self.config.evaluation.every,
            "trainer.validation_data_dir": path / "heldout",
            "trainer.default_local_dir": path,
        }

    def _data(self) -> dict[str, Any]:
        task, training = self.task, self.config.training
        return {
            "data.train_files": self.folder.path / "train.parquet",
            "data.val_files": self.folder.path / "heldout.parquet",
            "data.seed": training.seed,
            "data.train_batch_size": training.prompts_per_step,
            "data.max_prompt_length": task.max_prompt_length,
            "data.max_response_length": task.max_completion_length,
        }

    def _model(self) -> dict[str, Any]:
        training, evaluation = self.config.training, self.config.evaluation
        actor = {
            "ppo_mini_batch_size": training.prompts_per_step,
            "optim.lr": training.learning_rate,
            "optim.weight_decay": 0.0,
            "clip_ratio_low": training.clip_low,
            "clip_ratio_high": training.clip_high,
        }
        rollout = {
            "n": training.rollouts_per_prompt,
            "seed": training.seed,
            "temperature": training.temperature,
            "val_kwargs.n": evaluation.num_samples,
            "val_kwargs.do_sample": True,
            "val_kwargs.temperature": evaluation.temperature,
            "agent.num_workers": 2,
        }
        return {
            "actor_rollout_ref.model.path": policy_path(self.task.regime),
            **{f"actor_rollout_ref.actor.{key}": value for key, value in actor.items()},
            **{f"actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()},
        }

    def _chosen(self, section: str) -> dict[str, Any]:
        return getattr(self.config, section).model_dump(exclude_unset=True)

    def prepare(self) -> None:
        """Write configuration and data.

        Raises:
            ConfigError: The folder already holds a run, or sections do not fit together.
        """
        from coba_rl.hosts.verl.data import to_row, write_parquet

        check_config(self.config)
        sections = ("task", "allocation", "training", "evaluation")
        self.folder.create(tomli_w.dumps({section: self._chosen(section) for section in sections}))
        for name, split, problems in (
            ("train", "train", self.task.train_problems()),
            ("heldout", "test", self.task.heldout_problems()),
        ):
            write_parquet(
                (to_row(problem, split) for problem in problems), self.folder.path / f"{name}.parquet"
            )

    def train(self, timeout: float, progress: Progress | None = None) -> RunSummary:
        """Run verl to its end; write held-out accuracy, summary and report.

        Args:
            timeout: Seconds after which the job is ended.
            progress: Hears of the run; None: nobody does.

        Raises:
            ConfigError: It failed, or did not end in time; the error's note is the end of its log.
        """
        progress, start = progress or Progress(), time.monotonic()
        training = self.config.training
        progress.begin(training.steps, 0, training.prompts_per_step * training.rollouts_per_prompt)
        try:
            self._run(start + timeout, progress)
        finally:
            progress.end()
        seconds = time.monotonic() - start
        for record in self.evaluations():
            self.folder.log_heldout(record)
        return conclude(self.config, self.folder, seconds, progress)

    def _run(self, deadline: float, progress: Progress) -> None:
        settings = [f"{key}={value}" for key, value in self.settings().items()]
        command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", *settings, *self.overrides]
        environment = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "coba_rl.hosts.verl",
        }
        with self._log.open("wb") as stream:
            process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                for record in self._follow(process, deadline):
                    progress.update(record["step"], record)
            finally:
                _stop(process)
        if process.returncode:
            error = ConfigError(f"verl ended with code {process.returncode} (log: {str(self._log)!r}).")
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            error.add_note("\n".join(lines[-30:]))
            raise error

    @property
    def _log(self) -> Path:
        return self.folder.path / "log.txt"

    def _follow(self, process: subprocess.Popen[bytes], deadline: float) -> Iterator[dict[str, Any]]:
        """What is logged of each step as it is written, until the process ends."""
        seen = 0
        while True:
            ended = process.poll() is not None
            records = [record for record in read_metrics(self.folder.metrics_file) if record["step"]]
            yield from records[seen:]
            seen = len(records)
            if ended:
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"verl did not end in time (log: {str(self._log)!r}). Allow more with --timeout."
                )
            time.sleep(0.5)

    def evaluations(self) -> list[EvaluationRecord]:
        """Accuracy on each held-out problem, from what verl wrote of its validations."""
        files = {int(file.stem): file for file in (self.folder.path / "heldout").glob("*.jsonl")}
        records = []
        for step, file in sorted(files.items()):
            right: dict[str, list[float]] = {}
            for line in read_jsonl(file):
                right.setdefault(content_id(line["input"].strip()), []).append(float(line["acc"]))
            records.append(
                EvaluationRecord(step, "verl", {problem: sum(a) / len(a) for problem, a in right.items()})
            )
        return records


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the job and what it started; nothing if it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
