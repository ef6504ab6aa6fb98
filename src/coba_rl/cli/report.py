"""`coba-rl report`: the page of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coba_rl.packages import need
from coba_rl.report import write_run_report


@dataclass(frozen=True)
class ReportCommand:
    """Fields are the command's parameters."""

    folder: Path
    output: Path | None

    def run(self) -> int:
        need(["matplotlib", "jinja2"], "report")
        print(f"Page: {write_run_report(self.folder, self.output)}")
        return 0
