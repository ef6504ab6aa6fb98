"""Small run folders with the records of a real allocator on simulated prompts."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coba_rl import Allocation, BudgetAllocator
from coba_rl.evaluate import mean_estimate, paired_difference
from coba_rl.files import append_jsonl
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import check_study
from coba_rl.records import (
    AllocationRecord,
    EvaluationRecord,
    HeldoutSummary,
    RunSummary,
    append_records,
    write_summary,
)
from coba_rl.report import write_run_report

CONFIG = """\
[task]
name = "prefix-scan"
regime = "hard"

[allocation]
strategy = "{strategy}"
min_budget = 2
max_budget = 32
# <script>alert("not markup")</script>

[training]
steps = {steps}
seed = 3
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: opens pages in headless Chromium, which must be installed")


def simulate(folder: Path, strategy: str, steps: int, finished: bool = True) -> Path:
    """Write the records of a run in which 24 prompts, 8 a step, become easier as they are visited."""
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG.format(strategy=strategy, steps=steps), encoding="utf-8")
    rng = np.random.default_rng(5)
    allocator = BudgetAllocator(strategy, bounds=(2, 32))
    ability, difficulty = -1.0, rng.normal(0.0, 2.0, size=24)
    append_records(folder / "heldout.jsonl", [heldout_record(0)])
    for step in range(1, steps + 1):
        batch = [(step * 8 + i) % 24 for i in range(8)]
        allocation = allocator.allocate([f"p{i}" for i in batch], total=64)
        rate_R = 1.0 / (1.0 + np.exp(difficulty[batch] - ability))[allocation.repeat_index]
        success_R = (rng.random(64) < rate_R).astype(float)
        success_R[0] = np.nan if step == 2 else success_R[0]
        allocator.observe([f"p{batch[i]}" for i in allocation.repeat_index], success_R)
        value_P = allocator.strategy.value(allocation.pass_rates, 8.0)
        append_records(folder / "allocations.jsonl", _records(step, allocation, success_R, value_P))
        if step % 6 == 0:
            append_records(folder / "heldout.jsonl", [heldout_record(step)])
        append_jsonl(
            folder / "metrics.jsonl",
            [{"step": step, "completions/mean_length": 4.0 + 0.5 * step, **allocator.metrics()}],
        )
        ability += 0.25
    if finished:
        write_summary(folder / "summary.json", summary(strategy, steps, rng))
    return folder


def heldout_record(step: int) -> EvaluationRecord:
    """A measurement of 40 problems, one of which was not judged."""
    value = 0.3 + step / 60
    accuracy: dict[str, float | None] = {f"h{i}": value + (0.1 if i % 2 else -0.1) for i in range(40)}
    return EvaluationRecord(step, "transformers", {**accuracy, "unjudged": None})


def _records(
    step: int, allocation: Allocation, success_R: np.ndarray, value_P: np.ndarray | None
) -> list[AllocationRecord]:
    rows = []
    for position, prompt_id in enumerate(allocation.prompt_ids):
        outcomes = success_R[allocation.repeat_index == position]
        rate, value = allocation.pass_rates[position], np.nan if value_P is None else value_P[position]
        rows.append(
            AllocationRecord(
                step=step,
                prompt_id=prompt_id,
                pass_rate=None if np.isnan(rate) else float(rate),
                value=None if np.isnan(value) else float(value),
                budget=int(allocation.budgets[position]),
                successes=float(np.nansum(outcomes)),
                attempts=int((~np.isnan(outcomes)).sum()),
            )
        )
    return rows


def summary(strategy: str, steps: int, rng: np.random.Generator) -> RunSummary:
    before, after = rng.random(40) * 0.5, rng.random(40) * 0.5 + 0.4
    gain = paired_difference(after, before)
    return RunSummary(
        strategy=strategy,
        steps=steps,
        rollouts=64 * steps,
        tokens=None,
        budget_min=2,
        budget_max=32,
        dead_groups=0.5,
        seconds=12.0,
        heldout=HeldoutSummary(16, 40, mean_estimate(before), mean_estimate(after), gain),
        where_rollouts_went=(),
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders by strategy, 18 steps each, to be read and not changed."""
    root = tmp_path_factory.mktemp("runs")
    return {
        name: simulate(root / name, name, steps=18) for name in ("coba", "coba-paper", "uniform", "knapsack")
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run folder that the test may change."""

    def make(strategy: str = "coba", steps: int = 6, finished: bool = True) -> Path:
        return simulate(tmp_path / "run", strategy, steps, finished)

    return make


@pytest.fixture(scope="session")
def pages(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each run."""
    root = tmp_path_factory.mktemp("pages")
    return {name: write_run_report(folder, root / f"{name}.html") for name, folder in runs.items()}


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


class Browser:
    """Headless Chromium, one process a call."""

    FLAGS = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    )  # fmt: skip

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
        found = next((path for name in names if name and (path := shutil.which(name))), None)
        if found is None:
            pytest.fail(
                "Chromium is not installed: install it, set CHROMIUM to it, or deselect with -m 'not browser'."
            )
        self._program = found

    def run(self, page: Path, *arguments: str) -> str:
        """Open a page and return what Chromium prints."""
        command = [self._program, *self.FLAGS, f"--user-data-dir={self._folder / 'profile'}", *arguments]
        done = subprocess.run(
            [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def frame(self, page: str, width: int, height: int) -> Path:
        """A file that shows the page at the given width and measures it."""
        frame = self._folder / "frame.html"
        frame.write_text(FRAME.format(width=width, height=height, page=html.escape(page)), encoding="utf-8")
        return frame

    def check_fit(self, page: str, width: int) -> None:
        """Assert that every figure is drawn, can be read, and that nothing sticks out or is fetched."""
        frame = self.frame(page, width, height=844)
        dom = self.run(frame, "--window-size=1400,900", "--virtual-time-budget=5000", "--dump-dom")
        found = re.search(r'<pre id="measured">(.+?)</pre>', dom)
        assert found, "the page did not load in its frame"
        measured = json.loads(html.unescape(found[1]))
        assert measured["inner"] == width
        assert measured["scroll"] <= measured["inner"]
        assert measured["tooWide"] == []
        assert len(measured["drawings"]) == page.count("<figure>") > 0
        assert min(measured["drawings"]) > (300 if width == 390 else 400)
        assert measured["smallest"] >= 8.0  # font size in pixels of the screen
        assert measured["requests"] == 0


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


STUDY = {
    "title": "Coins",
    "question": "Does <b> win?",
    "baselines": ["uniform"],
    "seeds": [0, 1, 2],
    "show": ["transitions", "mechanism", "estimates"],
    "settings": {"hard": {}, "hard, double": {"rollouts_per_prompt": 32}},
    "arms": {"uniform": {"strategy": "uniform"}, "coba <b>": {"strategy": "coba"}},
}


@pytest.fixture(scope="session")
def study_results() -> StudyResults:
    """A study whose runs are made up: in the first setting only the second arm ends 0.05 higher, for more tokens."""
    study = check_study(STUDY, "coins")
    records = {}
    for run in study.runs():
        gain = 0.05 if run.arm != "uniform" and run.setting == "hard" else 0.001 * (run.config.seed - 1)
        curve = [
            (step, 0.2 + step / 400 * (1 + 0.1 * run.config.seed) + gain * step / 120)
            for step in (0, 60, 120)
        ]
        per_step = 6600 if run.arm != "uniform" and run.setting == "hard" else 6000
        steps = [
            {
                "step": float(step),
                "tokens": per_step,
                "rollouts": run.config.rollouts_per_step,
                "budget_follows_true_value": 0.5,
                "pass_rate_rmse": 0.1,
                "coba/alpha": 2.0,
            }
            for step in range(1, 121)
        ]
        before, after = [0, 2, 8, 14, 16] * 20, [2, 8, 14, 16, 16] * 20
        records[run.key] = LabResult(run.config, curve, before, after, steps, 20.0)
    return StudyResults(StudyPlan(study, lambda run: records[run.key]), "Made by a test.")
