"""Two run folders side by side: what they cost, where their rollouts went, and whether held-out accuracy differs.

    python examples/compare_runs.py runs/a runs/b

The difference is paired by problem; its interval covers the problems, not what another seed would have given.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coba_rl.evaluate import paired_difference
from coba_rl.records import (
    HELDOUT_FILE,
    SUMMARY_FILE,
    EvaluationRecord,
    RunSummary,
    read_records,
    read_summary,
)


def final_accuracy(folder: Path) -> dict[str, float | None]:
    """Held-out accuracy after the last measurement, by problem."""
    return read_records(folder / HELDOUT_FILE, EvaluationRecord)[-1].accuracy


def finished(folder: Path) -> RunSummary:
    summary = read_summary(folder / SUMMARY_FILE)
    if summary is None:
        sys.exit(f"{folder} holds no finished run: {SUMMARY_FILE} is missing.")
    return summary


def main(first: Path, second: Path) -> None:
    for folder in (first, second):
        summary = finished(folder)
        tokens = "unknown" if summary.tokens is None else f"{summary.tokens:,}"
        print(f"{folder}: {summary.strategy}, {summary.rollouts:,} rollouts, {tokens} tokens generated")
        for row in summary.where_rollouts_went:
            share = f"{row.share_of_prompts:6.1%} of prompts, {row.share_of_rollouts:6.1%} of rollouts"
            print(f"  pass rate {row.pass_rate:<9} {share}")
    a, b = final_accuracy(first), final_accuracy(second)
    pairs = [
        (b[problem], a[problem]) for problem in a if a[problem] is not None and b.get(problem) is not None
    ]
    if not pairs:
        sys.exit("The runs have no held-out problem in common.")
    difference = paired_difference(*zip(*pairs, strict=True))
    interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    print(f"{second} − {first}: {difference.value:+.3f} {interval} over {len(pairs)} held-out problems")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {Path(sys.argv[0]).name} RUN_FOLDER RUN_FOLDER")
    main(*map(Path, sys.argv[1:]))
