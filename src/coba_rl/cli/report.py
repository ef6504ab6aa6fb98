"""`coba-rl report`: the page of a run folder."""

from __future__ import annotations

from pathlib import Path

from coba_rl.packages import need


def report(folder: Path, *, output: Path | None = None) -> None:
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
    need(["matplotlib", "jinja2"], "report")
    from coba_rl.report import write_run_report

    print(f"Page: {write_run_report(folder, output)}")
