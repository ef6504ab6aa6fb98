"""The tables of docs/speed are those of its measurements, and README says what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEED = ROOT / "docs" / "speed"
RESULTS = json.loads((SPEED / "results.json").read_text(encoding="utf-8"))["parts"]


@pytest.mark.parametrize("folder", [SPEED, SPEED / "hosts"])
def test_the_tables_show_every_measured_ratio(folder: Path) -> None:
    parts = json.loads((folder / "results.json").read_text(encoding="utf-8"))["parts"]
    tables = (folder / "tables.md").read_text(encoding="utf-8")
    ratios = [row for part in parts.values() for row in part["rows"] if row["low"] < row["high"]]
    assert len(ratios) >= 4
    for row in ratios:
        assert f"{row['ratio']:.3g}× ({row['low']:.3g} – {row['high']:.3g})" in tables


def test_the_readme_says_what_was_measured() -> None:
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"budgets for 512 prompts in ([0-9.]+) ms, ([0-9]+) bytes a prompt", words)
    assert found
    fast = next(row for row in RESULTS["solvers"]["rows"] if row["name"] == "fast" and row["prompts"] == 512)
    assert float(found[1]) == pytest.approx(1000 * fast["seconds"], abs=0.05)
    assert int(found[2]) == round(RESULTS["histories"]["facts"]["N = 1,000,000: bytes a prompt"])
