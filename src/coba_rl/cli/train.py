"""`coba-rl train`: from a command line to a run."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coba_rl.cli.arguments import parse_overrides
from coba_rl.cli.progress import TrainingProgress
from coba_rl.cli.summary import print_summary
from coba_rl.cli.tables import print_json
from coba_rl.errors import ConfigError
from coba_rl.records import RunSummary
from coba_rl.runs.config import RunConfig, load_config, to_toml
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.training import check, finished, train


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
        summary = finished(config, folder) if self.resume else None
        if summary is not None:
            print(f"coba-rl: the run in {str(folder.path)!r} is finished.", file=sys.stderr)
        elif self.dry_run:
            check(config, folder, resume=self.resume)
            self._print_plan(config, folder)
        else:
            summary = self._train(config, folder)
        if summary is not None:
            print_summary(summary, self.json)
        return 0

    def _resolve(self) -> RunConfig:
        overrides = parse_overrides(self.overrides)
        for section, keys in self.flags.items():
            given = {key: value for key, value in keys.items() if value is not None}
            overrides[section] = {**given, **overrides.get(section, {})}
        return load_config(self._source(), overrides)

    def _source(self) -> Path | None:
        if not self.resume:
            return self.config_file
        if self.config_file is not None:
            raise ConfigError("--resume uses the configuration in the run folder: leave the config file out.")
        if self.output_dir is None:
            raise ConfigError("--resume needs --output-dir: the folder of the run to continue.")
        folder = RunFolder(self.output_dir)
        folder.check_old()
        return folder.config_file

    def _train(self, config: RunConfig, folder: RunFolder) -> RunSummary | None:
        try:
            return train(config, folder, resume=self.resume, progress=TrainingProgress())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(folder)) from None

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
    task, strategy = (name.replace(":", ".") for name in (config.task.name, config.allocation.strategy))
    return Path("runs") / f"{task}-{strategy}-seed{config.training.seed}"


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.config_file.exists():
        return "Nothing was written yet."
    command = f"coba-rl train --output-dir {shlex.quote(str(folder.path))} --resume"
    return f"Go on from step {folder.last_step()} with: {command}"
