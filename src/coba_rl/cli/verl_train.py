"""`python -m coba_rl.cli.verl_train`: the embedded policy and task through verl's own entry point, on a CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts import App

from coba_rl.allocation import BudgetAllocator
from coba_rl.cli.arguments import Count, Seed
from coba_rl.cli.entry import run_app
from coba_rl.cli.packages import need
from coba_rl.cli.progress import TrainingProgress
from coba_rl.cli.summary import print_summary
from coba_rl.errors import ConfigError
from coba_rl.evaluate import mean_estimate, paired_difference
from coba_rl.files import read_jsonl, write_json
from coba_rl.report.records import Allocations
from coba_rl.report.series import generated_tokens, rollouts_by_bin
from coba_rl.tasks.base import content_id
from coba_rl.tasks.prefix_scan import PrefixScan

PROMPTS, ROLLOUTS, SAMPLES = 32, 16, 2
"""Prompts of a step, rollouts of a prompt on average, completions of a held-out problem."""

app = App(name="verl-train", help_format="markdown")


@dataclass(frozen=True)
class VerlRun:
    """One run in a folder of its own.

    Args:
        folder: For data, log, metrics, allocations, checkpoints and summary.
        strategy: A strategy's name.
        steps: Training steps.
        seed: Of data order and sampling.
        overrides: Further settings of verl, `key=value`.
    """

    folder: Path
    strategy: str
    steps: int
    seed: int
    overrides: tuple[str, ...] = ()
    task: PrefixScan = field(default_factory=lambda: PrefixScan(num_train=256))

    @property
    def metrics_file(self) -> Path:
        """One line a logged step, `{"step": …, "data": {…}}`, written by verl."""
        return self.folder / "verl.jsonl"

    def settings(self) -> dict[str, Any]:
        """Over the defaults of verl and of the CPU platform."""
        from coba_rl.tasks.policy import policy_path

        return {
            "hydra.searchpath": "[pkg://coba_rl.hosts.verl.cpu.conf]",
            "+coba": "cpu",
            "hydra.run.dir": self.folder / "hydra",
            "trainer.v1.trainer_mode": "coba_sync",
            "+algorithm.coba.strategy": self.strategy,
            "+algorithm.coba.min_budget": 2,
            "+algorithm.coba.max_budget": 128,
            "data.train_files": self.folder / "train.parquet",
            "data.val_files": self.folder / "heldout.parquet",
            "data.seed": self.seed,
            "data.train_batch_size": PROMPTS,
            "data.max_prompt_length": self.task.max_prompt_length,
            "data.max_response_length": self.task.max_completion_length,
            "actor_rollout_ref.model.path": policy_path(self.task.regime),
            "actor_rollout_ref.rollout.n": ROLLOUTS,
            "actor_rollout_ref.rollout.seed": self.seed,
            "actor_rollout_ref.rollout.val_kwargs.n": SAMPLES,
            "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
            "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
            "actor_rollout_ref.rollout.agent.num_workers": 2,
            "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
            "actor_rollout_ref.actor.optim.lr": 5e-4,
            "actor_rollout_ref.actor.optim.weight_decay": 0.0,
            "actor_rollout_ref.actor.clip_ratio_high": 0.28,
            "reward.custom_reward_function.path": "pkg://coba_rl.hosts.verl.rewards",
            "reward.custom_reward_function.name": "prefix_scan",
            "reward.num_workers": 2,
            "trainer.logger": "[console,file]",
            "trainer.total_training_steps": self.steps,
            "trainer.total_epochs": 1 + self.steps * PROMPTS // self.task.num_train,
            "trainer.save_freq": self.steps,
            "trainer.test_freq": self.steps,
            "trainer.validation_data_dir": self.folder / "heldout",
            "trainer.default_local_dir": self.folder / "checkpoints",
        }

    def prepare(self) -> None:
        """Write the data.

        Raises:
            ConfigError: The folder already holds a run.
        """
        from coba_rl.hosts.verl.data import to_row, write_parquet

        if self.metrics_file.exists():
            raise ConfigError(f"{str(self.folder)!r} already holds a run. Choose another --output-dir.")
        for name, split, problems in (
            ("train", "train", self.task.train_problems()),
            ("heldout", "test", self.task.heldout_problems()),
        ):
            write_parquet((to_row(problem, split) for problem in problems), self.folder / f"{name}.parquet")

    def train(self, timeout: float) -> float:
        """Run verl; the seconds it took.

        Raises:
            ConfigError: It failed, or did not end in time; the message shows the end of its log.
        """
        settings = [f"{key}={value}" for key, value in self.settings().items()]
        command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", *settings, *self.overrides]
        environment = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "coba_rl.hosts.verl",
            "VERL_FILE_LOGGER_PATH": str(self.metrics_file),
        }
        log, start = self.folder / "log.txt", time.monotonic()
        with log.open("wb") as stream, TrainingProgress(self.steps, 0, PROMPTS * ROLLOUTS) as progress:
            process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                for record in self._follow(process, start + timeout):
                    if record["step"]:
                        progress.update(record["step"], record["data"])
            finally:
                _stop(process)
        if process.returncode:
            tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
            print(tail, file=sys.stderr)
            raise ConfigError(f"verl ended with code {process.returncode} (log: {str(log)!r}).")
        return time.monotonic() - start

    def _follow(self, process: subprocess.Popen[bytes], deadline: float) -> Iterator[dict[str, Any]]:
        """Records of the metrics file as they are written, until the process ends."""
        seen = 0
        while True:
            ended = process.poll() is not None
            records = list(read_jsonl(self.metrics_file))
            yield from records[seen:]
            seen = len(records)
            if ended:
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"verl did not end in time (log: {str(self.folder / 'log.txt')!r}). Allow more with --timeout."
                )
            time.sleep(0.5)

    def heldout_accuracy(self, step: int) -> list[float]:
        """(P,) accuracy of each held-out problem, in the order of the task."""
        right: dict[str, list[float]] = {}
        for record in read_jsonl(self.folder / "heldout" / f"{step}.jsonl"):
            right.setdefault(record["input"].strip(), []).append(float(record["acc"]))
        by_id = {content_id(prompt): sum(values) / len(values) for prompt, values in right.items()}
        return [by_id[problem.prompt_id] for problem in self.task.heldout_problems()]

    def summarise(self, seconds: float) -> dict[str, Any]:
        """What the run came to, in the form of `coba-rl train`."""
        records = list(read_jsonl(self.folder / "checkpoints" / "allocations.jsonl"))
        allocations = Allocations.from_records(records)
        logged = [record for record in read_jsonl(self.metrics_file) if record["step"]]
        lengths = [record["data"].get("response_length/mean", np.nan) for record in logged]
        budgets = [record["budget"] for record in records]
        before, after = self.heldout_accuracy(0), self.heldout_accuracy(self.steps)
        dead = [record["data"]["coba/dead_groups"] for record in logged]
        return {
            "strategy": self.strategy,
            "steps": self.steps,
            "rollouts": sum(budgets),
            "tokens": generated_tokens(
                np.array([record["step"] for record in logged]), np.array(lengths), allocations
            ),
            "budget_min": min(budgets),
            "budget_max": max(budgets),
            "dead_groups": sum(dead) / len(dead),
            "seconds": seconds,
            "heldout": {
                "num_samples": SAMPLES,
                "num_problems": len(after),
                "before": mean_estimate(before).as_dict(),
                "after": mean_estimate(after).as_dict(),
                "gain": paired_difference(after, before).as_dict(),
            },
            "where_rollouts_went": rollouts_by_bin(allocations),
        }


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the job and what it started; nothing if it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@app.default
def verl_train(
    *overrides: str,
    strategy: str = "coba",
    steps: Count = 36,
    seed: Seed = 0,
    output_dir: Path | None = None,
    timeout: float = 1500,
    json: bool = False,
) -> int:
    """Train the embedded policy on the embedded task through verl: Ray, FSDP2 and TransferQueue, on a CPU.

    Parameters
    ----------
    overrides
        Further settings of verl, e.g. actor_rollout_ref.actor.optim.lr=5e-4.
    strategy
        coba, coba-paper, coba-release, uniform, knapsack, static-exploit, static-explore, linear-decay,
        explore-exploit, variance, gvm, or "package.module:Class".
    steps
        Training steps.
    seed
        Of data order and sampling.
    output_dir
        Where the run goes; runs/verl-prefix-scan-STRATEGY-seedSEED when unset.
    timeout
        Seconds after which the job is ended.
    json
        Print JSON instead of tables.
    """
    BudgetAllocator(strategy, bounds=(2, 128))  # raises on an unknown one
    need(["verl", "ray"], "this")
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # its messages go to the log, not the terminal
    name = strategy.replace(":", ".")
    folder = (output_dir or Path("runs") / f"verl-prefix-scan-{name}-seed{seed}").absolute()
    run = VerlRun(folder, strategy, steps, seed, overrides)
    print("coba-rl: starting Ray and verl, about a minute until the first step", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job is ended, too
    run.prepare()
    summary = run.summarise(run.train(timeout))
    write_json(folder / "summary.json", summary)
    print_summary(summary, json)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command, see `run_app`."""
    return run_app(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
