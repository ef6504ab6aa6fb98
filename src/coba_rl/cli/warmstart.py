"""`coba-rl warmstart`: make a policy of an embedded task."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from coba_rl.cli.arguments import Seed
from coba_rl.cli.outputs import check_folder
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import ConfigError
from coba_rl.packages import need
from coba_rl.runs.models import be_quiet
from coba_rl.tasks import EmbeddedName


def warmstart(
    *,
    task: EmbeddedName = "prefix-scan",
    regime: Literal["hard", "heterogeneous", "moderate"] = "hard",
    seed: Seed = 0,
    output_dir: Path,
    json: bool = False,
) -> None:
    """Make the policy of an embedded task: a tiny language model, supervised on a noisy teacher.

    The shipped policies are these, with seed 0.

    Parameters
    ----------
    task
        What the policy is for: prefix-scan or string-transform.
    regime
        How reliable the teacher is: hard, heterogeneous or moderate; string-transform has hard only.
    seed
        Of the teacher, the model and the data.
    output_dir
        Where the checkpoint goes.
    json
        Print JSON instead of a table.
    """
    need(["torch", "transformers"], "warmstart")
    check_folder(output_dir)
    if output_dir.exists() and any(output_dir.iterdir()):
        raise ConfigError(f"{str(output_dir)!r} is not empty. Choose another --output-dir.")
    from coba_rl.tasks.warmstart import warmstart as make_policy

    be_quiet()
    with counting(f"warm start, {task}, {regime}") as progress:
        metrics = make_policy(regime, seed, output_dir, task=task, progress=progress)
    if json:
        print_json(metrics)
    else:
        print_table(f"Policy in {output_dir}", ["", ""], [[k, f"{v:.4g}"] for k, v in metrics.items()])
