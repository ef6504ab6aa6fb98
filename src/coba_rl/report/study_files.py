"""The files of a study: tables for programs, for a README and for the eye."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from coba_rl.files import write_atomic, write_csv, write_json
from coba_rl.lab.comparison import StudyResults
from coba_rl.report.page import write_page
from coba_rl.report.study_report import study_sections
from coba_rl.report.study_tables import comparison_rows, counted_seeds, summary_tables


def write_study(results: StudyResults, folder: Path) -> None:
    """Write `results.csv` (one row a measured point), `comparisons.csv`, `tables.md`, `summary.json`, `report.html`.

    Raises:
        ConfigError: The page cannot be written.
        ImportError: matplotlib or jinja2 is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "results.csv", results.tidy())
    write_csv(folder / "comparisons.csv", [comparison.as_dict() for comparison in results.comparisons()])
    write_atomic(folder / "tables.md", markdown_tables(results))
    write_json(folder / "summary.json", results.summary())
    study = results.study
    write_page(folder / "report.html", study.title, lambda: study_sections(results), study.question)


def markdown_tables(results: StudyResults) -> str:
    """The tables of the page's first section and one a setting, for a README, below a line that says what they show."""
    study = results.study
    parts = [
        f"{study.title}. {study.question} {counted_seeds(study)}: mean with its 95 % interval over seeds (Student's t); "
        "differences pair the seeds, in brackets on how many the arm was ahead. Tokens are all that were generated. "
        f"{results.made_by}"
    ]
    for table in summary_tables(results):
        parts += [f"{table.caption}:", _markdown(table.columns, table.rows)]
    for setting in results.groups:
        (_, *columns), rows = comparison_rows(results, setting)
        parts.append(_markdown([setting, *columns], rows))
    return "\n\n".join(parts) + "\n"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, cells))} |" for cells in lines)


def _escaped(cell: str) -> str:
    """A cell whose text is no markup of the table, of HTML or of a formula."""
    return re.sub(r"([\\|<$])", r"\\\1", cell)
