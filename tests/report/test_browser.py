"""The page in a real browser: it fits a desktop and a phone, and its figures are drawn."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# Chromium opens no window as narrow as a phone, so the page stands in a frame of the wanted width.
FRAME = """<!DOCTYPE html><meta charset="utf-8">
<style>body {{ margin: 0 }} iframe {{ border: 0; display: block }}</style>
<iframe width="{width}" height="{height}" srcdoc="{page}"></iframe><pre id="measured"></pre>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow, box = page.scrollingElement;
  const tooWide = [...page.querySelectorAll("body *")].filter(
    e => !e.closest("pre, .scroll, svg") && e.getBoundingClientRect().right > view.innerWidth + 0.5);
  const texts = [...page.querySelectorAll("figure svg text")].map(
    e => parseFloat(view.getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
      / e.ownerSVGElement.viewBox.baseVal.width);
  document.getElementById("measured").textContent = JSON.stringify({{
    inner: view.innerWidth, scroll: box.scrollWidth, height: box.scrollHeight,
    tooWide: tooWide.map(e => e.outerHTML.slice(0, 80)),
    drawings: [...page.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect().width),
    smallest: Math.min(...texts), requests: view.performance.getEntriesByType("resource").length,
  }});
}};
</script>"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("strategy", ["coba", "uniform"])
def test_the_page_fits_the_screen(pages, browser, tmp_path: Path, strategy: str, width: int) -> None:
    page = pages[strategy].read_text(encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, height=844, page=html.escape(page)), encoding="utf-8")
    dom = browser.run(frame, "--window-size=1400,900", "--virtual-time-budget=5000", "--dump-dom")
    found = re.search(r'<pre id="measured">(.+?)</pre>', dom)
    assert found, "the page did not load in its frame"
    measured = json.loads(html.unescape(found[1]))
    assert measured["inner"] == width
    assert measured["scroll"] <= measured["inner"]
    assert measured["tooWide"] == []
    assert len(measured["drawings"]) == page.count("<figure>")
    assert min(measured["drawings"]) > (300 if width == 390 else 400)
    assert measured["smallest"] >= 8.0  # font size in pixels of the screen
    assert measured["requests"] == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_figures_are_painted(pages, browser, tmp_path: Path, width: int) -> None:
    from matplotlib.image import imread

    page = pages["coba"].read_text(encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, height=5000, page=html.escape(page)), encoding="utf-8")
    picture = tmp_path / "page.png"
    browser.run(frame, f"--window-size={max(width, 600)},5000", f"--screenshot={picture}")
    pixels = np.round(imread(picture)[:, :width, :3] * 255).astype(int)
    for colour in ("0072b2", "d55e00", "009e73", "56b4e9"):
        wanted = [int(colour[i : i + 2], 16) for i in (0, 2, 4)]
        assert (np.abs(pixels - wanted).max(axis=2) <= 8).sum() > 50, f"no #{colour} on the page"
