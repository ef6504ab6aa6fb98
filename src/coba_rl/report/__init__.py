"""Reports: the records of a run → figures (inline SVG) → one self-contained HTML page.

`records` reads a run folder, `series` condenses it, `figures` draws data as SVG strings, `page` turns
sections into HTML, and `run_report` puts a training run's page together. Needs matplotlib and jinja2 when it
draws: `pip install 'coba-rl[report]'`.
"""

from __future__ import annotations

from coba_rl.report.run_report import write_run_report

__all__ = ["write_run_report"]
