"""`coba-rl train`: from a command line to a run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from coba_rl.cli.arguments import Count, Seed, parse_overrides
from coba_rl.cli.progress import TrainingProgress
from coba_rl.cli.summary import print_summary
from coba_rl.cli.tables import print_json
from coba_rl.errors import ConfigError
from coba_rl.records import RunSummary
from coba_rl.runs import training
from coba_rl.runs.config import RunConfig, load_config, to_toml
from coba_rl.runs.folder import RunFolder


def train(
    config: Path | None = None,
    *,
    strategy: str | None = None,
    steps: Count | None = None,
    seed: Seed | None = None,
    model: str | None = None,
    dataset: str | None = None,
    output_dir: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
    json: bool = False,
    **overrides: dict[str, str],
) -> None:
    """Train a policy with TRL's GRPO, every prompt's rollouts decided by a strategy.

    Without arguments it trains the embedded policy on the embedded task, in minutes on a CPU. The run folder
    gets `config.toml`, `metrics.jsonl`, `allocations.jsonl`, `heldout.jsonl`, checkpoints, `policy/`,
    `summary.json` and `report.html`.

    Every key of the configuration can be set as `--section.key VALUE`, e.g. `--allocation.kappa 15
    --training.learning_rate 5e-4 --trl.use_vllm true`. `coba-rl train --dry-run` prints all keys with what
    they mean.

    Parameters
    ----------
    config
        TOML file with sections task, policy, allocation, training, evaluation, trl; or the name of a shipped
        configuration, e.g. qwen2.5-7b-dapo-math. A task of your own is named "package.module:Class".
    strategy
        coba, coba-paper, coba-release, uniform, knapsack, static-exploit, static-explore, linear-decay,
        explore-exploit, variance, gvm, or "package.module:Class".
    steps
        Training steps.
    seed
        Of data order, sampling and initialisation.
    model
        Folder or hub name of the policy to train.
    dataset
        Your own data: parquet, JSONL, JSON or CSV file, or hub name.
    output_dir
        Run folder. Default: runs/TASK-STRATEGY-seedN.
    resume
        Continue the run in the run folder from its last complete checkpoint.
    dry_run
        Check all that the run would, print the resolved configuration, write and train nothing.
    json
        Print the summary as JSON instead of a table.
    overrides
        Any configuration key, as --section.key VALUE.
    """
    flags = {
        "allocation": {"strategy": strategy},
        "training": {"steps": steps, "seed": seed},
        "policy": {"model": model},
        "task": {"dataset": dataset, "name": None if dataset is None else "math"},
    }
    changes = parse_overrides(overrides)
    for section, keys in flags.items():
        given = {key: value for key, value in keys.items() if value is not None}
        changes[section] = {**given, **changes.get(section, {})}
    run_config = load_config(_config_to_resume(config, output_dir) if resume else config, changes)
    folder = RunFolder(output_dir or _default_folder(run_config))
    summary = training.finished(run_config, folder) if resume else None
    if summary is not None:
        print(f"coba-rl: the run in {str(folder.path)!r} is finished.", file=sys.stderr)
    elif dry_run:
        training.check(run_config, folder, resume=resume)
        _print_plan(run_config, folder, json)
    else:
        summary = _train(run_config, folder, resume)
    if summary is not None:
        print_summary(summary, json)


def _config_to_resume(config: Path | None, output_dir: Path | None) -> Path:
    if config is not None:
        raise ConfigError("--resume uses the configuration in the run folder: leave the config file out.")
    if output_dir is None:
        raise ConfigError("--resume needs --output-dir: the folder of the run to continue.")
    folder = RunFolder(output_dir)
    folder.check_old()
    return folder.config_file


def _train(config: RunConfig, folder: RunFolder, resume: bool) -> RunSummary | None:
    try:
        return training.train(config, folder, resume=resume, progress=TrainingProgress())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(folder)) from None


def _print_plan(config: RunConfig, folder: RunFolder, as_json: bool) -> None:
    if as_json:
        print_json(config.model_dump())
        return
    steps, mean = config.training.steps, config.training.rollouts_per_prompt
    rollouts = config.training.prompts_per_step * mean
    print(to_toml(config))
    print(f"# Would train {steps} steps of {rollouts:,} rollouts ({steps * rollouts:,} in all)")
    print(f"# into {str(folder.path)!r}.")
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
