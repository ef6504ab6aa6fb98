"""`coba-rl train`: from a configuration to a trained policy and a run folder."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.cli.config import RunConfig, load_config, parse_overrides, to_toml
from coba_rl.cli.packages import need
from coba_rl.cli.run_folder import RunFolder
from coba_rl.cli.summary import print_summary, write_report
from coba_rl.cli.tables import print_json
from coba_rl.errors import ConfigError
from coba_rl.evaluate import mean_estimate, paired_difference
from coba_rl.files import read_jsonl
from coba_rl.report.records import Allocations
from coba_rl.report.series import MEAN_LENGTH, generated_tokens, rollouts_by_bin


@dataclass(frozen=True)
class TrainCommand:
    """Fields are the command's parameters."""

    config_file: Path | None
    overrides: dict[str, dict[str, str]]
    flags: dict[str, dict[str, Any]]
    output_dir: Path | None
    resume: bool
    dry_run: bool
    json: bool

    def run(self) -> int:
        config = self._resolve()
        folder = RunFolder(self.output_dir or _default_folder(config))
        need(["torch", "transformers", "trl", "datasets"], "train")
        summary = folder.read_summary() if self.resume else None
        if summary is not None and summary["steps"] >= config.training.steps:
            print(f"coba-rl: the run in {str(folder.path)!r} is finished.", file=sys.stderr)
        elif self.dry_run:
            _make_run(config, folder).check(self.resume)
            self._print_plan(config, folder)
        else:
            summary = _train(config, folder, self.resume)
        if summary is not None:
            print_summary(summary, self.json)
        return 0

    def _resolve(self) -> RunConfig:
        overrides = parse_overrides(self.overrides)
        for section, keys in self.flags.items():
            given = {key: value for key, value in keys.items() if value is not None}
            overrides[section] = {**given, **overrides.get(section, {})}
        source = self.config_file
        if self.resume:
            if self.config_file is not None:
                raise ConfigError(
                    "--resume uses the configuration in the run folder: leave the config file out."
                )
            if self.output_dir is None:
                raise ConfigError("--resume needs --output-dir: the folder of the run to continue.")
            source = RunFolder(self.output_dir).config_file
            if not source.exists():
                raise ConfigError(
                    f"{str(self.output_dir)!r} holds no run to resume: {source.name} is missing."
                )
        return load_config(source, overrides)

    def _print_plan(self, config: RunConfig, folder: RunFolder) -> None:
        if self.json:
            print_json(config.model_dump())
            return
        training = config.training
        rollouts = training.prompts_per_step * training.rollouts_per_prompt
        print(to_toml(config))
        print(
            f"# Would train {training.steps} steps of {rollouts:,} rollouts ({training.steps * rollouts:,} in all)"
        )
        print(f"# into {str(folder.path)!r}.")
        mean = training.rollouts_per_prompt
        dead = ", ".join(f"{p**mean + (1 - p) ** mean:.0%} at p = {p}" for p in (0.01, 0.05, 0.2, 0.5))
        print(f"# A group of {mean} rollouts is dead, all right or all wrong, with chance {dead}.")


def _default_folder(config: RunConfig) -> Path:
    strategy = config.allocation.strategy.replace(":", ".")
    return Path("runs") / f"{config.task.name}-{strategy}-seed{config.training.seed}"


def _make_run(config: RunConfig, folder: RunFolder) -> Any:
    from coba_rl.cli.trl_run import TrlRun  # imports torch

    return TrlRun(config, folder)


def _train(config: RunConfig, folder: RunFolder, resume: bool) -> dict[str, Any] | None:
    """Train and measure; the summary, or None on processes other than the first."""
    try:
        seconds = _make_run(config, folder).train(resume)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(folder)) from None
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    summary = summarise(config, folder, seconds)
    folder.write_summary(summary)
    write_report(folder.path)
    return summary


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.config_file.exists():
        return "Nothing was written yet."
    command = f"coba-rl train --output-dir {shlex.quote(str(folder.path))} --resume"
    return f"Go on from step {folder.last_step()} with: {command}"


def summarise(config: RunConfig, folder: RunFolder, seconds: float) -> dict[str, Any]:
    """What the run came to, JSON-able.

    Args:
        config: The run's configuration.
        folder: The run's folder, with its records.
        seconds: Training time of this process.
    """
    records = list(read_jsonl(folder.allocations_file))
    allocations = Allocations.from_records(records)
    metrics = list(read_jsonl(folder.metrics_file))
    dead = [record["coba/dead_groups"] for record in metrics if record.get("coba/dead_groups") is not None]
    budgets = [record["budget"] for record in records]
    return {
        "strategy": config.allocation.strategy,
        "steps": config.training.steps,
        "rollouts": sum(budgets),
        "tokens": _generated_tokens(metrics, allocations),
        "budget_min": min(budgets, default=0),
        "budget_max": max(budgets, default=0),
        "dead_groups": sum(dead) / len(dead) if dead else 0.0,
        "seconds": seconds,
        "heldout": _heldout_gain(config, folder),
        "where_rollouts_went": rollouts_by_bin(allocations),
    }


def _heldout_gain(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Held-out accuracy before and after, over the problems that were judged both times."""
    measured = folder.read_heldout()
    before, after = measured.get(0, {}), measured.get(config.training.steps, {})
    pairs = [(value, after.get(problem)) for problem, value in before.items()]
    pairs_P = np.array([pair for pair in pairs if None not in pair]).reshape(-1, 2)
    counts = {"num_samples": config.evaluation.num_samples, "num_problems": len(pairs_P)}
    if not len(pairs_P):
        return {**counts, "before": None, "after": None, "gain": None}
    before_P, after_P = pairs_P.T
    return {
        **counts,
        "before": mean_estimate(before_P).as_dict(),
        "after": mean_estimate(after_P).as_dict(),
        "gain": paired_difference(after_P, before_P).as_dict(),
    }


def _generated_tokens(metrics: list[dict[str, Any]], allocations: Allocations) -> int | None:
    logged = [record for record in metrics if record.get(MEAN_LENGTH) is not None]
    steps, lengths = ([record[key] for record in logged] for key in ("step", MEAN_LENGTH))
    return generated_tokens(np.array(steps), np.array(lengths), allocations)
