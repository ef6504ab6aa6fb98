"""Reports: the records of a run → figures (inline SVG) → one self-contained HTML page.

`records` reads a run folder, `series` condenses it, `figures` draws data as SVG strings, `page` turns
sections into HTML, `run_report` puts a training run's page together, and `study_files` writes the tables and the page
of a study. Needs matplotlib and jinja2 when it draws: `pip install 'coba-rl[report]'`.
"""

from __future__ import annotations

from coba_rl.report.run_report import write_run_report
from coba_rl.report.study_files import write_study

__all__ = ["write_run_report", "write_study"]
