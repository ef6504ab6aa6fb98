"""Commands and their options; each command's work is in a module of its own."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from coba_rl.cli.arguments import Count, Seed
from coba_rl.cli.entry import run_app

app = App(
    name="coba-rl",
    help="Spend rollouts where they teach: per-prompt rollout budgets for GRPO-style training.",
    version=lambda: version("coba-rl"),
    help_format="markdown",
)

Overrides = dict[str, str]


@app.command
def train(
    config: Path | None = None,
    *,
    strategy: str | None = None,
    steps: Count | None = None,
    seed: Seed | None = None,
    model: str | None = None,
    dataset: str | None = None,
    output_dir: Path | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    **overrides: Overrides,
) -> int:
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
    from coba_rl.cli.train import TrainCommand

    flags = {
        "allocation": {"strategy": strategy},
        "training": {"steps": steps, "seed": seed},
        "policy": {"model": model},
        "task": {"dataset": dataset, "name": None if dataset is None else "math"},
    }
    return TrainCommand(config, overrides, flags, output_dir, resume, dry_run, json).run()


@app.command
def evaluate(
    model: str,
    *,
    task: str = "prefix-scan",
    num_samples: Count = 16,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: Count | None = None,
    batch_size: Count = 512,
    limit: Count | None = None,
    seed: Seed = 0,
    output: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure avg@k and unbiased pass@k of a model, with 95 % intervals over problems.

    Parameters
    ----------
    model
        Folder or hub name of a transformers causal language model.
    task
        prefix-scan, a benchmark (aime24, aime25, amc23, math500, olympiadbench), NAME=FILE for a local copy
        of a benchmark, or a data file.
    num_samples
        Completions of each problem: k of avg@k, and the largest k of pass@k.
    temperature
        Of sampling.
    top_p
        Of sampling. The paper evaluates with 0.9.
    max_new_tokens
        Most tokens of a completion. Default: the task's.
    batch_size
        Completions generated at a time.
    limit
        Evaluate only the first so many problems.
    seed
        Of sampling and of the intervals.
    output
        Write the completions and their scores to this JSON-lines file.
    json
        Print JSON instead of a table.
    """
    from coba_rl.cli.evaluate import EvaluateCommand

    return EvaluateCommand(
        model, task, num_samples, temperature, top_p, max_new_tokens, batch_size, limit, seed, output, json
    ).run()


@app.command
def allocate(
    file: Path,
    *,
    total: Count,
    strategy: str = "coba",
    min_budget: Count = 2,
    max_budget: Count = 128,
    output: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    **options: str,
) -> int:
    """Give the prompts of a file their rollouts: what a strategy would do with what you know of them.

    Parameters
    ----------
    file
        CSV, JSONL, JSON or parquet with `prompt_id` and either `pass_rate`, or `successes` and `attempts`.
    total
        Rollouts to share out.
    strategy
        See `coba-rl train --help`.
    min_budget
        Fewest rollouts of a prompt.
    max_budget
        Most rollouts of a prompt.
    output
        Write the budgets to this file (CSV, JSONL or parquet, by its ending) instead of the terminal.
    json
        Print JSON instead of a table.
    options
        Any option of the strategy, e.g. --kappa 15.
    """
    from coba_rl.cli.allocate import AllocateCommand

    return AllocateCommand(file, total, strategy, min_budget, max_budget, output, json, options).run()


@app.command
def study(
    config: str = "main",
    *,
    seeds: str | None = None,
    steps: Count | None = None,
    workers: Count | None = None,
    output_dir: Path = Path("runs/studies"),
    list: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare strategies on the embedded task: every arm, in every setting, on the same seeds.

    Runs are small and exact: a GRPO loop on one core each, held-out accuracy computed rather than sampled.
    Finished runs are kept and shared between studies, so the same command goes on where it was stopped.
    `runs/studies/NAME` gets `results.csv` (one row a measured point), `comparisons.csv`, `tables.md`,
    `summary.json` and `report.html`.

    `coba-rl study --list` names the shipped studies. A study of your own is a TOML file: copy a shipped one
    and change its arms; keys are the fields of `coba_rl.lab.config.LabConfig`.

    Parameters
    ----------
    config
        Name of a shipped study, or a TOML file.
    seeds
        Seeds instead of the study's, e.g. 0,1,2 or 10-14.
    steps
        Training steps instead of the study's.
    workers
        Runs at a time, one core each. Default: the cores there are.
    output_dir
        Where the studies' folders and their runs go.
    list
        Show the shipped studies and how many runs each takes.
    json
        Print the summary as JSON instead of tables.
    """
    import os

    from coba_rl.cli.study import StudyCommand

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return StudyCommand(config, seeds, steps, workers or cores, output_dir, list, json).run()


@app.command
def report(folder: Path, *, output: Path | None = None) -> int:
    """Write the page of a run: what it learned, what it cost, and where its rollouts went.

    A run that is not finished is shown as far as it got. Any folder with `metrics.jsonl` or `allocations.jsonl` will
    do: that of `coba-rl train`, and `trainer.default_local_dir` of a verl job in the trainer mode `coba_sync`. The
    page is one HTML file that needs nothing but itself.

    Parameters
    ----------
    folder
        The run's folder.
    output
        The page. Default: report.html in the folder.
    """
    from coba_rl.cli.report import ReportCommand

    return ReportCommand(folder, output).run()


@app.command
def warmstart(
    *,
    regime: Literal["hard", "heterogeneous", "moderate"] = "hard",
    seed: Seed = 0,
    output_dir: Path,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make the embedded policy: a tiny language model, supervised on a noisy teacher of prefix-scan.

    The shipped policies are these, with seed 0.

    Parameters
    ----------
    regime
        How reliable the teacher is: hard, heterogeneous or moderate.
    seed
        Of the teacher, the model and the data.
    output_dir
        Where the checkpoint goes.
    json
        Print JSON instead of a table.
    """
    from coba_rl.cli.warmstart import WarmstartCommand

    return WarmstartCommand(regime, seed, output_dir, json).run()


@app.command
def bench(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    hosts: Annotated[bool, Parameter(negative="")] = False,
    output_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure how fast budgets are found, and what that costs a training run.

    Everything runs in one process, and what is compared takes turns in short rounds: read the ratios, which hardly
    depend on the machine and on what else it does, before the times. The spread is that of the ratios over rounds;
    where it includes 1 the two cannot be told apart.

    Measured are the solvers (the paper's heap as printed, ours, dynamic programming, the fast one) and all strategies
    on batches of 64 to 1,000,000 prompts; `allocate`, `observe`, saving and loading; and an allocator that knows up
    to 10 million prompts. It takes a few minutes and 2 GB of memory.

    Parameters
    ----------
    quick
        Small batches and few rounds: half a minute.
    hosts
        Measure instead what the TRL host adds to a training step: stock TRL, `uniform` and `coba` take turns step by
        step. Needs the extra `trl`.
    output_dir
        Folder for results.json, tables.md, scaling.svg and report.html. Needs the extra `report`.
    json
        Print JSON instead of tables.
    """
    from coba_rl.cli.bench import BenchCommand

    return BenchCommand(quick, hosts, output_dir, json).run()


@app.command
def env(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Show what is installed and what can therefore be run; put this into bug reports.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    from coba_rl.cli.env import EnvCommand

    return EnvCommand(json).run()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, see `run_app`."""
    return run_app(app, arguments)
