"""All commands under one name; each is in a module of its own, which imports heavy libraries only when it runs."""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App, Parameter

from coba_rl.cli.allocate import allocate
from coba_rl.cli.bench import bench
from coba_rl.cli.entry import run_app
from coba_rl.cli.env import env
from coba_rl.cli.evaluate import evaluate
from coba_rl.cli.report import report
from coba_rl.cli.study import study
from coba_rl.cli.train import train
from coba_rl.cli.warmstart import warmstart

app = App(
    name="coba-rl",
    help="Spend rollouts where they teach: per-prompt rollout budgets for GRPO-style training.",
    version=lambda: version("coba-rl"),
    help_format="markdown",
    default_parameter=Parameter(negative=""),
)
for command in (train, evaluate, allocate, study, report, warmstart, bench, env):
    app.command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, see `run_app`."""
    return run_app(app, arguments)
