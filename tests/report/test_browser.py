"""The page in a real browser: it fits a desktop and a phone, and its figures are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.study import check_study
from coba_rl.report.study_files import write_study

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("strategy", ["coba", "uniform"])
def test_the_page_fits_the_screen(pages, browser, strategy: str, width: int) -> None:
    browser.check_fit(pages[strategy].read_text(encoding="utf-8"), width)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_study_fits_the_screen(study_results, browser, tmp_path: Path, width: int) -> None:
    write_study(study_results, tmp_path)
    browser.check_fit((tmp_path / "report.html").read_text(encoding="utf-8"), width)


def test_the_page_of_a_wide_tuned_study_fits_the_screen(study_results, browser, tmp_path: Path) -> None:
    first, made_up = study_results.study, study_results.records[0]
    arms = {
        "uniform": {"strategy": "uniform"},
        **{f"coba, {i}": {"options": {"kappa": 5.0 + i}} for i in range(7)},
    }
    settings = {f"{20 + i} % unsolvable, 25 % solved": {"unsolvable": i / 10} for i in range(3)}
    tune = {"learning_rate": [1.5e-4, 3e-4], "within": (1.5e-4, 1.2e-3), "seeds": [100]}
    values = {**first.model_dump(), "arms": arms, "settings": settings, "tune": tune}
    plan = StudyPlan(
        check_study(values, "wide"),
        lambda run: None if run.arm == "coba, 3" else replace(made_up, config=run.config),
    )
    write_study(StudyResults(plan, ""), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("not run") > 3
    for width in (390, 1280):
        browser.check_fit(page, width)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_figures_are_painted(pages, browser, tmp_path: Path, width: int) -> None:
    from matplotlib.image import imread

    page = pages["coba"].read_text(encoding="utf-8")
    frame = browser.frame(page, width, height=5000)
    picture = tmp_path / "page.png"
    browser.run(frame, f"--window-size={max(width, 600)},5000", f"--screenshot={picture}")
    pixels = np.round(imread(picture)[:, :width, :3] * 255).astype(int)
    for colour in ("0072b2", "d55e00", "009e73", "56b4e9"):
        wanted = [int(colour[i : i + 2], 16) for i in (0, 2, 4)]
        assert (np.abs(pixels - wanted).max(axis=2) <= 8).sum() > 50, f"no #{colour} on the page"
