"""The summary of a run, as the terminal shows it."""

from __future__ import annotations

from dataclasses import asdict

from coba_rl.cli.tables import format_estimate, print_json, print_table
from coba_rl.records import RunSummary
from coba_rl.report.series import ROLLOUTS_COLUMNS, rollouts_cells


def print_summary(summary: RunSummary, as_json: bool) -> None:
    """Print a run's summary as tables or JSON."""
    if as_json:
        print_json(asdict(summary))
        return
    heldout = summary.heldout
    print_table(
        f"Held-out accuracy, avg@{heldout.num_samples} over {heldout.num_problems} problems (95 % interval)",
        ["", "accuracy"],
        [[name, format_estimate(getattr(heldout, name))] for name in ("before", "after", "gain")],
    )
    spent = [
        ["strategy", summary.strategy],
        ["steps", f"{summary.steps:,}"],
        ["rollouts", f"{summary.rollouts:,}"],
        ["generated tokens", "–" if summary.tokens is None else f"{summary.tokens:,}"],
        ["budgets, fewest to most", f"{summary.budget_min} to {summary.budget_max}"],
        ["dead groups, mean share", f"{summary.dead_groups:.1%}"],
        ["training time", f"{summary.seconds:.0f} s"],
    ]
    print_table("Rollouts spent", ["", ""], spent)
    print_table(
        "Where they went, by the pass rate believed at the time",
        ROLLOUTS_COLUMNS,
        list(map(rollouts_cells, summary.where_rollouts_went)),
    )
