"""The page of a study says what its runs show, and no more."""

from __future__ import annotations

import csv
import dataclasses
import html
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from coba_rl.evaluate import Estimate
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import StudyRun, check_study
from coba_rl.report import drawing
from coba_rl.report.study_figures import Band, bands_figure, cost_figure
from coba_rl.report.study_files import write_study
from coba_rl.report.study_report import study_verdict
from coba_rl.report.study_tables import comparison_rows

HOSTILE = [
    r"$\frac{1}$", r"\$5", "$x$", "_mine", "a_b^c", "a\x07b", "<script>", "</svg>", "100 % & more", "[red]x[/b]", "奖励",
]  # fmt: skip
"""Names an arm may have that mean something to matplotlib, SVG, HTML or rich."""


def test_the_verdict_names_what_is_ahead_and_what_is_open(study_results: StudyResults) -> None:
    text = " ".join(study_verdict(study_results))
    assert "hard, against uniform: coba <b> (+1.5 points) is ahead on every seed." in text
    assert "hard, double, against uniform: no clear difference for coba <b>." in text


def test_few_seeds_give_no_verdict(study_results: StudyResults) -> None:
    study = study_results.study.model_copy(update={"seeds": [0, 1]})
    text = " ".join(study_verdict(StudyResults(StudyPlan(study, study_results.plan.record), "")))
    assert "nothing can be said" in text
    assert "ahead" not in text


def test_the_page_holds_the_numbers_of_the_comparison(study_results: StudyResults, tmp_path: Path) -> None:
    write_study(study_results, tmp_path)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    cells = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", html, re.S)
    shown = {re.sub(r"\s+", " ", cell).strip().replace("&lt;", "<").replace("&gt;", ">") for cell in cells}
    for setting in study_results.groups:
        columns, rows = comparison_rows(study_results, setting)
        missing = {cell for row in [columns, *rows] for cell in row} - shown
        assert not missing
    assert "coba <b>" not in html  # escaped everywhere


def test_the_same_results_give_the_same_files(study_results: StudyResults, tmp_path: Path) -> None:
    write_study(study_results, tmp_path / "a")
    write_study(study_results, tmp_path / "b")
    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("a", "b")
    )
    assert first == second
    assert set(first) == {"report.html", "results.csv", "comparisons.csv", "tables.md", "summary.json"}


def test_the_tables_for_programs_hold_every_comparison(study_results: StudyResults, tmp_path: Path) -> None:
    write_study(study_results, tmp_path)
    with (tmp_path / "comparisons.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, found in zip(rows, study_results.comparisons(), strict=True):
        assert (row["setting"], row["arm"], row["measure"]) == (found.setting, found.arm, found.measure)
        interval = [float(row[name]) for name in ("difference", "low", "high")]
        assert interval == [found.difference.value, found.difference.low, found.difference.high]


def test_comparisons_pair_the_seeds(study_results: StudyResults) -> None:
    found = study_results.comparison("hard", "coba <b>", "uniform", "final")
    assert (found.wins, found.seeds) == (3, 3)
    uniform = study_results.values("hard", "uniform", "final")
    coba = study_results.values("hard", "coba <b>", "final")
    assert abs(found.difference.value - (coba - uniform).mean()) < 1e-12
    # Seeds differ by far more than the arms: unpaired, the interval would hold zero.
    assert found.difference.low > 0.04 > uniform.std()
    assert uniform.max() > coba.min()


def test_an_arm_that_lost_on_one_seed_is_not_ahead(study_results: StudyResults) -> None:
    def find(run: StudyRun) -> LabResult:
        record = study_results.plan.record(run)
        lost = (run.arm, run.setting, run.config.seed) == ("coba <b>", "hard", 2)
        return dataclasses.replace(record, curve=[*record.curve[:-1], (120, 0.0)]) if lost else record

    text = " ".join(study_verdict(StudyResults(StudyPlan(study_results.study, find), "")))
    assert "ahead" not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_every_figure(name: str) -> None:
    bands = [Band(name, np.arange(3), np.eye(3)), Band("other", np.arange(3), np.eye(3))]
    estimate = Estimate(0.5, 0.4, 0.6)
    shown = name.replace("\x07", r"\x07")
    for svg in (
        bands_figure("b", "Title", bands, "step", "accuracy"),
        cost_figure("c", "Title", {name: [(1, estimate)], "other": [(1, estimate)]}),
    ):
        texts = ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter()]
        assert shown in [text.strip().lstrip("\N{WORD JOINER}") for text in texts]


def test_hostile_names_of_arms_and_settings_do_not_break_the_page(
    study_results: StudyResults, tmp_path: Path
) -> None:
    first, *others = HOSTILE
    arms = {"uniform": {"strategy": "uniform"}, **{name: {"strategy": "coba"} for name in HOSTILE}}
    values = {**study_results.study.model_dump(), "arms": arms, "settings": {name: {} for name in others}}
    study = check_study({**values, "title": first, "question": first}, "hostile")
    made_up = study_results.records[0]
    plan = StudyPlan(study, lambda run: dataclasses.replace(made_up, config=run.config))
    write_study(StudyResults(plan, "hand"), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in HOSTILE:
        assert html.escape(name) in page.replace("&#39;", "&#x27;")
    assert "<script" not in page
    assert page.count("<svg") == page.count("</svg>") > 0


def test_an_arm_that_is_missing_is_said_to_be_and_leaves_the_others_their_looks(
    study_results: StudyResults, tmp_path: Path
) -> None:
    def find(run: StudyRun) -> LabResult | None:
        return None if (run.arm, run.setting) == ("uniform", "hard") else study_results.plan.record(run)

    results = StudyResults(StudyPlan(study_results.study, find), "")
    assert results.arms("hard") == ["coba <b>"]
    assert "1 of 4 arms in settings have not been run" in study_verdict(results)[0]
    write_study(results, tmp_path)
    assert "not run" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    band = Band("arm", np.arange(3), np.eye(3))
    alone = bands_figure("b", "Title", [None, band], "step", "accuracy").lower()
    assert drawing.LINE_COLOURS[1].lower() in alone
    assert drawing.LINE_COLOURS[0].lower() not in alone


def test_the_page_of_a_study_that_has_not_begun_says_so(study_results: StudyResults, tmp_path: Path) -> None:
    write_study(StudyResults(StudyPlan(study_results.study, lambda _: None), ""), tmp_path)
    assert "4 of 4 arms in settings have not been run" in (tmp_path / "report.html").read_text(
        encoding="utf-8"
    )
