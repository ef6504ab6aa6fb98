"""The studies in docs/ are whole, and the README shows their numbers."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from coba_rl.lab.study import load_study, shipped_studies

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "docs" / "studies"


PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
NOT_RUN = re.findall(r"^\| `coba-rl study ([\w-]+)` \| .* \| not run yet \|$", PAGE, re.M)
RUN = sorted({*shipped_studies()} - {*NOT_RUN})


def test_a_study_has_its_results_or_is_said_not_to() -> None:
    assert sorted(folder.name for folder in STUDIES.iterdir()) == RUN
    for name in NOT_RUN:
        assert load_study(name).question in PAGE


@pytest.mark.parametrize("name", RUN)
def test_every_shipped_study_ran_in_full(name: str) -> None:
    study, folder = load_study(name), STUDIES / name
    finals = _finals(folder / "results.csv")
    expected = {(s, a): len(study.seeds) for s in study.settings for a in study.arms}
    assert {key: len(values) for key, values in finals.items()} == expected
    tables = (folder / "tables.md").read_text(encoding="utf-8")
    for (_, arm), values in finals.items():
        final = f"{100 * sum(values) / len(values):.1f}"
        assert re.search(rf"^\| {re.escape(arm)} \|( \d+ \|)? {re.escape(final)} \[", tables, re.M)
    assert study.question in (folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert f"studies/{name}/report.html" in PAGE


@pytest.mark.parametrize("name", RUN)
def test_every_study_names_the_commit_that_made_it(name: str) -> None:
    tables = (STUDIES / name / "tables.md").read_text(encoding="utf-8")
    older = re.search(r"^The pages of .*? predate", PAGE, re.M | re.S)
    assert older
    listed = re.findall(r"`([\w-]+)`|\((?:commit )?([0-9a-f]{7})\)", older[0])
    commits = [commit for _, commit in listed]
    assert commits[-1]  # after each row of names, the commit that made them
    assert (name in [study for study, _ in listed]) != bool(re.search(r"at commit [0-9a-f]{7,}", tables))


def _finals(path: Path) -> dict[tuple[str, str], list[float]]:
    """(setting, arm) → accuracy at the last step of each seed that chose no learning rate."""
    last: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        if row.get("phase") == "tuning":
            continue
        key = (row["setting"], row["arm"], row["seed"])
        last[key] = max(last.get(key, (-1, 0.0)), (int(row["step"]), float(row["accuracy"])))
    finals = defaultdict(list)
    for (setting, arm, _), (_, accuracy) in last.items():
        finals[setting, arm].append(accuracy)
    return dict(finals)


def test_the_readme_shows_what_a_token_buys() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = (STUDIES / "terms" / "tables.md").read_text(encoding="utf-8").split("\n\n")
    shown = [table for table in tables if table.startswith("| setting ")]
    assert len(shown) == 3
    assert all(table.strip() in readme for table in shown)


def test_every_interval_in_the_readme_is_a_studys() -> None:
    tables = "".join(path.read_text(encoding="utf-8") for path in STUDIES.glob("*/tables.md"))
    shown = re.findall(
        r"\S+ \[[-+]?[\d.]+, [-+]?[\d.]+\]|\S+ ± [\d.]+", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert len(shown) > 20
    assert not [interval for interval in shown if interval.lstrip("(") not in tables]


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "experiments").glob("*.toml")), ids=lambda f: f.stem)
def test_every_experiment_can_be_run_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))  # for rules.py
    assert load_study(file).runs()
    assert file.name in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
