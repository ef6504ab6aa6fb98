"""The examples run as they stand, and the trainer of one's own is a host like any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.tasks.base import Problem
from coba_rl.tasks.prefix_scan import PrefixScan
from coba_rl.testing import HostConformance
from coba_rl.testing.hosts import Judge, Trained

pytestmark = pytest.mark.trl

EXAMPLES = Path(__file__).parents[1] / "examples"
LONGEST = 150
"""Lines of a host."""


def run(name: str, folder: Path, *arguments: object) -> str:
    """What an example prints."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def test_a_trainer_of_ones_own(tmp_path: Path) -> None:
    steps = run("own_trainer.py", tmp_path).splitlines()
    assert len(steps) == 12
    assert len((EXAMPLES / "own_trainer.py").read_text().splitlines()) < LONGEST


def test_a_strategy_of_ones_own(tmp_path: Path) -> None:
    printed = run("own_strategy.py", tmp_path)
    assert printed.count("held-out accuracy 0.148 -> ") == 2


def test_trl_on_data_of_ones_own(tmp_path: Path) -> None:
    assert run("trl_own_data.py", tmp_path).count("rollouts a prompt") == 8
    assert not [*tmp_path.iterdir()]


def test_a_task_of_ones_own_and_two_runs_compared(tmp_path: Path) -> None:
    assert "2,048 rollouts" in run("own_task.py", tmp_path, tmp_path / "a")
    assert (tmp_path / "a" / "report.html").is_file()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    printed = run("compare_runs.py", tmp_path, "a", "b")
    assert printed.count("coba, 2,048 rollouts") == 2
    assert "b − a: +0.000 [+0.000, +0.000] over 25 held-out problems" in printed


class TestOwnTrainer(HostConformance):
    """Past its first lines it is the example's, unchanged."""

    @pytest.fixture(autouse=True)
    def _import(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.delitem(sys.modules, "own_trainer", raising=False)

    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        from own_trainer import OwnTrainer  # ty: ignore[unresolved-import]

        def judged(problem: Problem, index: int, text: str) -> Any:
            return judge(problem.prompt_id, index)

        trainer = OwnTrainer(spec.build(), PrefixScan(num_train=24).train_problems(), judged, folder)
        finished = trainer.train(steps, resume)
        return Trained(trainer.session.allocator, finished)
