"""The life of a run: checked, trained, summarised, reported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from coba_rl.packages import need
from coba_rl.records import RunSummary
from coba_rl.runs.config import RunConfig
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.progress import Progress
from coba_rl.runs.summary import conclude

if TYPE_CHECKING:
    from coba_rl.runs.trl_run import TrlRun


def train(
    config: RunConfig, folder: RunFolder, *, resume: bool = False, progress: Progress | None = None
) -> RunSummary | None:
    """Train a policy through TRL, from nothing or from the last complete checkpoint; write summary and report.

    Args:
        config: What to run.
        folder: Where everything of the run goes.
        resume: Whether the folder holds the run, to go on with; a finished one is left as it is.
        progress: Hears of the run; None: nobody does.

    Returns:
        What the run came to; None in processes other than the first.

    Raises:
        ConfigError: Something cannot be run here, or the folder holds a run, or with `resume` holds none.
        DatasetError: Data that cannot be read, or too little of it.
        StateError: The run to go on with is damaged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as empty:
        ...     train(RunConfig(), RunFolder(Path(empty)), resume=True)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coba_rl.errors.ConfigError: '...' holds no run to resume: config.toml is missing. ...
    """
    if resume and (summary := finished(config, folder)):
        return summary
    progress = progress or Progress()
    seconds = _make_run(config, folder).train(resume, progress)
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    return conclude(config, folder, seconds, progress)


def check(config: RunConfig, folder: RunFolder, *, resume: bool = False) -> None:
    """Refuse all that `train` would refuse before it loads the weights; nothing is written or changed.

    Args:
        config, folder, resume: As for `train`.

    Raises:
        ConfigError, DatasetError, StateError: As for `train`.
    """
    _make_run(config, folder).check(resume)


def finished(config: RunConfig, folder: RunFolder) -> RunSummary | None:
    """The summary of a run that has all its steps; None where some are left.

    Raises:
        ConfigError: The folder holds no run.
        StateError: The summary is damaged.
    """
    folder.check_old()
    summary = folder.read_summary()
    return summary if summary is not None and summary.steps >= config.training.steps else None


def _make_run(config: RunConfig, folder: RunFolder) -> TrlRun:
    need(["torch", "transformers", "trl", "datasets"], "train")
    from coba_rl.runs.trl_run import TrlRun  # imports torch

    return TrlRun(config, folder)
