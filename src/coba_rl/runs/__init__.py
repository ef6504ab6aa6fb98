"""Training runs, from a configuration to a folder that tells the whole of them; `coba-rl train` calls this.

    >>> from pathlib import Path
    >>> from coba_rl.runs import RunConfig, RunFolder, load_config
    >>> config = load_config(None, {"allocation": {"strategy": "knapsack"}, "training": {"steps": 20}})
    >>> config.training.steps, config == RunConfig(allocation=config.allocation, training=config.training)
    (20, True)
    >>> folder = RunFolder(Path("runs/knapsack"))

`train(config, folder)` then trains, and `train(config, folder, resume=True)` goes on after an interruption. Both return
a `coba_rl.records.RunSummary`; `coba_rl.runs.progress.Progress` is what to subclass for hearing of each step.
"""

from __future__ import annotations

from coba_rl.runs.config import RunConfig, load_config
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.training import train

__all__ = ["RunConfig", "RunFolder", "load_config", "train"]
