"""Runs of `coba-rl train` for the tests of faults."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

from coba_rl.cli import main

SMALL = (
    *("--training.prompts_per_step", "8", "--training.rollouts_per_prompt", "4"),
    *("--training.save_every", "1", "--evaluation.num_samples", "1"),
)
"""A step in a tenth of a second. 128 of them before a prompt comes back."""


def train(folder: Path, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """`coba-rl train` in a process of its own."""
    command = [sys.executable, "-m", "coba_rl.cli", "train", "--output-dir", str(folder), "--json"]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=3000, check=False, **options
    )


def train_here(folder: Path, *arguments: str | Path) -> int:
    """The same in this process, which saves the start of another; the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, while training
        return main(["train", "--output-dir", str(folder), *map(str, arguments)])


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a run printed; it must have ended well."""
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def message(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that an ended run says; it must be one of ours."""
    assert done.returncode == 2, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    *_, line = done.stderr.strip().splitlines()
    assert line.startswith("coba-rl: ")
    return line


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
