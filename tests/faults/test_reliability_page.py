"""docs/reliability.md: every test it names is there, and every reported fault is answered."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
REPORTED = """
    slime #1414, AReaL #1419, slime #2230, AReaL #1454, NeMo-RL #4161, ms-swift #3980, verl #6025, verl #2881,
    TRL #4531, verl #4585, DAPO #22, verl #953, NeMo-RL #2431, OpenRLHF #1270, SkyRL #1801, CoursIA #10603, TRL #6367,
    prime-rl #3566, TRL #5902, TRL #5126, ms-swift #8123, prime-rl #3266, prime-rl #3261, prime-rl #1451,
    unsloth #3626, verl #5725, TRL #5911, NeMo-RL #2519, NeMo-RL #3665, prime-rl #748, Reasoning360 #153, verl #473,
    verl #3933, verl #5228, verl #6786, TRL #3061
"""
"""Public reports of faults in training with GRPO."""


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_test_named_on_the_page_is_there(file: str, name: str) -> None:
    assert name.startswith("test_")
    assert name in names_in(ROOT / file)


def test_every_row_of_the_page_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", row)] == []


def test_every_test_of_faults_is_on_the_page() -> None:
    checks_of_the_tests = {"test_the_search_below_finds", "test_every_model_is_loaded_without_trust"}
    named = {name for _, name in NAMED} | checks_of_the_tests
    for file in Path(__file__).parent.glob("test_*.py"):
        if file.name != Path(__file__).name:
            assert {name for name in names_in(file) if name.startswith("test_")} <= named, file.name


@pytest.mark.parametrize("report", [report.strip() for report in REPORTED.split(",")])
def test_every_reported_fault_is_answered_on_the_page(report: str) -> None:
    assert re.search(rf"{re.escape(report)}\b", PAGE)
