"""What a training run came to: accuracy before and after, rollouts spent, and where they went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from coba_rl.cli.tables import format_estimate, print_json, print_table


def write_report(folder: Path) -> None:
    """Write the run's `report.html` and say where it is, or what is missing for it."""
    from coba_rl.report import write_run_report

    try:
        print(f"coba-rl: report in {str(write_run_report(folder))!r}", file=sys.stderr)
    except ImportError as error:
        print(f"coba-rl: no report: {error}", file=sys.stderr)


def print_summary(summary: dict[str, Any], as_json: bool) -> None:
    """Print a run's summary as tables or JSON."""
    if as_json:
        print_json(summary)
        return
    rows = [[name, format_estimate(summary["heldout"][name])] for name in ("before", "after", "gain")]
    problems = summary["heldout"]["num_problems"]
    title = (
        f"Held-out accuracy, avg@{summary['heldout']['num_samples']} over {problems} problems (95 % interval)"
    )
    print_table(title, ["", "accuracy"], rows)
    spent = [
        ["strategy", str(summary["strategy"])],
        ["steps", f"{summary['steps']:,}"],
        ["rollouts", f"{summary['rollouts']:,}"],
        ["generated tokens", "–" if summary["tokens"] is None else f"{summary['tokens']:,}"],
        ["budgets, fewest to most", f"{summary['budget_min']} to {summary['budget_max']}"],
        ["dead groups, mean share", f"{summary['dead_groups']:.1%}"],
        ["training time", f"{summary['seconds']:.0f} s"],
    ]
    print_table("Rollouts spent", ["", ""], spent)
    went = [
        [
            row["pass_rate"],
            f"{row['share_of_prompts']:.1%}",
            f"{row['share_of_rollouts']:.1%}",
            f"{row['mean_budget']:.1f}",
            "–" if row["success"] is None else f"{row['success']:.3f}",
        ]
        for row in summary["where_rollouts_went"]
    ]
    print_table(
        "Where they went, by the pass rate believed at the time",
        ["pass rate", "prompts", "rollouts", "mean budget", "success"],
        went,
    )
