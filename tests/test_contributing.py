"""CONTRIBUTING: its recipes run, and the rooms it shows are those that stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
RECIPES = ["frontier", "faded", "last_digit", "own_trainer", "spread"]


@pytest.mark.trl
def test_the_five_recipes_run_as_they_stand(tmp_path: Path) -> None:
    """Each in a file of the name that stands in its first line, beside the examples."""
    assert [name for name, _ in BLOCKS if name.startswith("test_")] == [f"test_{name}.py" for name in RECIPES]
    assert len(BLOCKS) == PAGE.count("```python")
    for name, code in BLOCKS:
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "conftest.py").touch()  # pytest puts its folder on the path
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), str(ROOT / "src")])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    for name in RECIPES:
        assert f"test_{name}" not in finished.stdout, "nothing was skipped"


def shown_tree() -> set[str]:
    """Files and folders of the tree, as paths below src/coba_rl."""
    tree = re.search(r"```\nsrc/coba_rl/\n(.*?)```", PAGE, re.DOTALL)
    assert tree is not None
    shown, folder = set(), ""
    for line in tree[1].splitlines():
        names = takewhile(re.compile(r"\w+(\.py|/)$").match, line.split())
        if line.startswith("    "):
            shown |= {f"{folder}{name}" for name in names}
        elif line.startswith("  "):
            (folder,) = names
            shown.add(folder)
    return shown


def test_the_rooms_shown_are_those_that_stand() -> None:
    package = ROOT / "src" / "coba_rl"
    for name in shown_tree():
        assert (package / name).exists(), f"CONTRIBUTING shows {name}, which is not there"
    rooms = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= shown_tree(), f"CONTRIBUTING lacks {sorted(rooms - shown_tree())}"
