"""What work in a checkout leaves behind breaks neither of the README's two commands."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "docs", "recipes", "examples")
FILES = ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
UNTIDY = "import  sys,os\nx=  1 ;recieve = 2\n"


def imported_names() -> set[str]:
    """Top-level names of everything that the project's files import."""
    names = set()
    for folder in CODE:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.partition(".")[0])
    return names - {"coba_rl"}


@pytest.fixture(scope="module")
def used_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with what users leave: a folder of every imported name, scripts, notebooks, caches."""
    checkout = tmp_path_factory.mktemp("used") / "checkout"
    for folder in CODE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(sys.prefix)
    left = {*imported_names(), "runs", "wandb", "outputs", "checkpoints", "mlruns", "lightning_logs", "venv"}
    for name in left:
        (checkout / name / "first").mkdir(parents=True)
        (checkout / name / "first" / "script.py").write_text(UNTIDY)
        (checkout / name / "first" / "metrics.jsonl").write_text('{"recieve": 1}\n')
    cell = {"cell_type": "code", "metadata": {}, "source": [UNTIDY], "outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (checkout / "look.ipynb").write_text(json.dumps(notebook))
    (checkout / "mine.py").write_text(UNTIDY)
    (checkout / "data.csv").write_text("recieve\n")
    return checkout


def in_checkout(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": "src"}
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_lint(used_checkout: Path) -> None:
    done = in_checkout(used_checkout, "make", "--old-file=.venv/ready", "lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_are_collected(used_checkout: Path) -> None:
    """With the checkout on the path, as `python -m` puts it, and a module that has the name of a folder in it."""
    tests = ("tests/faults/test_changed.py", "tests/allocation/test_metrics.py")
    done = in_checkout(used_checkout, sys.executable, "-m", "pytest", "-q", "--collect-only", *tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_training_again_makes_another_folder() -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/ready", "train", "ARGS=--steps 2"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert re.search(r"coba-rl train --output-dir runs/[\d-]+ --steps 2$", plan, re.MULTILINE)


def test_ci_runs_the_two_commands_of_the_readme_in_their_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    promised = re.findall(
        r"^make \w+", readme.partition("## Two commands")[2].partition("##")[0], re.MULTILINE
    )
    run = re.findall(r"^make \w+", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert promised == run == ["make train", "make test"]
