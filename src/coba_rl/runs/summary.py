"""What a training run came to: accuracy before and after, rollouts spent, and where they went."""

from __future__ import annotations

import numpy as np

from coba_rl.evaluate import mean_estimate, paired_difference
from coba_rl.records import EvaluationRecord, HeldoutSummary, RunSummary
from coba_rl.report import write_run_report
from coba_rl.report.records import read_run
from coba_rl.report.series import generated_tokens, rollouts_by_bin
from coba_rl.runs.config import RunConfig
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.progress import Progress


def conclude(config: RunConfig, folder: RunFolder, seconds: float, progress: Progress) -> RunSummary:
    """Write the summary of a run that is trained, which makes it finished, and its report.

    Args:
        config: The run's configuration.
        folder: The run's folder, with its records.
        seconds: Of training.
        progress: Is told where the report is, or what is missing for it.

    Raises:
        CobaError: A file is damaged or cannot be written.
    """
    summary = summarise(config, folder, seconds)
    folder.write_summary(summary)
    try:
        progress.note(f"report in {str(write_run_report(folder.path))!r}")
    except ImportError as error:
        progress.note(f"no report: {error}")
    return summary


def summarise(config: RunConfig, folder: RunFolder, seconds: float) -> RunSummary:
    """What the records of a run come to, whichever trainer wrote them; arguments as of `conclude`."""
    run = read_run(folder.path)
    dead_S, budget_A = run.metric("coba/dead_groups"), run.allocations.budget_A
    return RunSummary(
        strategy=config.allocation.strategy,
        steps=config.training.steps,
        rollouts=int(budget_A.sum()),
        tokens=generated_tokens(run),
        budget_min=int(budget_A.min(initial=config.allocation.max_budget)),
        budget_max=int(budget_A.max(initial=0)),
        dead_groups=float(np.nanmean(dead_S)) if np.isfinite(dead_S).any() else 0.0,
        seconds=seconds,
        heldout=heldout_summary(run.heldout, config.training.steps, config.evaluation.num_samples),
        where_rollouts_went=tuple(rollouts_by_bin(run.allocations)),
    )


def heldout_summary(measured: list[EvaluationRecord], steps: int, num_samples: int) -> HeldoutSummary:
    """Held-out accuracy before and after, over the problems that were judged both times.

    Args:
        measured: The measurements of a run.
        steps: Of the run.
        num_samples: Completions a problem.

    Example:
        >>> after = {"a": 0.5, "b": 1.0, "c": None}
        >>> measured = [EvaluationRecord(0, "vllm", {"a": 0.25, "b": 0.75}), EvaluationRecord(9, "vllm", after)]
        >>> heldout_summary(measured, steps=9, num_samples=4).gain
        Estimate(value=0.25, low=0.25, high=0.25)
    """
    by_step = {record.step: record.accuracy for record in measured}
    before, after = by_step.get(0, {}), by_step.get(steps, {})
    pairs = [(value, after.get(problem)) for problem, value in before.items()]
    pairs_P = np.array([pair for pair in pairs if None not in pair], dtype=float).reshape(-1, 2)
    if not len(pairs_P):
        return HeldoutSummary(num_samples, 0, before=None, after=None, gain=None)
    before_P, after_P = pairs_P.T
    return HeldoutSummary(
        num_samples,
        len(pairs_P),
        before=mean_estimate(before_P),
        after=mean_estimate(after_P),
        gain=paired_difference(after_P, before_P),
    )
