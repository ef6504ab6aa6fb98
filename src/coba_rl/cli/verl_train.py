"""`python -m coba_rl.cli.verl_train`: the embedded policy and task through verl's own entry point, on a CPU."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cyclopts import App

from coba_rl.cli.arguments import Count, Seed
from coba_rl.cli.entry import run_app
from coba_rl.cli.progress import TrainingProgress
from coba_rl.cli.summary import print_summary
from coba_rl.packages import need
from coba_rl.runs.config import check_config
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.verl_run import VerlRun, verl_config

app = App(name="verl-train", help_format="markdown")


@app.default
def verl_train(
    *overrides: str,
    strategy: str = "coba",
    steps: Count = 36,
    seed: Seed = 0,
    output_dir: Path | None = None,
    timeout: float = 1500,
    json: bool = False,
) -> None:
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
    config = verl_config(strategy, steps, seed)
    check_config(config)
    need(["verl", "ray"], "this")
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # its messages go to the log, not the terminal
    name = strategy.replace(":", ".")
    folder = (output_dir or Path("runs") / f"verl-prefix-scan-{name}-seed{seed}").absolute()
    run = VerlRun(config, RunFolder(folder), overrides)
    print("coba-rl: starting Ray and verl, about a minute until the first step", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job is ended, too
    run.prepare()
    print_summary(run.train(timeout, TrainingProgress()), json)


def main(arguments: list[str] | None = None) -> int:
    """Run the command, see `run_app`."""
    return run_app(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
