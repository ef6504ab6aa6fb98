"""The page in a real browser: it fits a desktop and a phone, and its figures are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
