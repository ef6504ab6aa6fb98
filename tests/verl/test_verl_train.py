"""The command behind `make train-verl`, on a small task."""

from __future__ import annotations

from pathlib import Path

import pytest

from coba_rl.cli.summary import print_summary
from coba_rl.cli.verl_train import PROMPTS, ROLLOUTS, VerlRun
from coba_rl.errors import ConfigError
from coba_rl.files import read_jsonl
from coba_rl.tasks.prefix_scan import PrefixScan

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


@pytest.mark.timeout(1300)
def test_it_trains_and_reports_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = VerlRun(tmp_path, "coba", steps=2, seed=0, task=PrefixScan(num_train=PROMPTS, num_heldout=16))
    run.prepare()
    summary = run.summarise(run.train(timeout=1200))
    assert summary["rollouts"] == 2 * PROMPTS * ROLLOUTS
    assert 2 <= summary["tokens"] / summary["rollouts"] <= run.task.max_completion_length
    # The second step sees the same prompts again, with a history.
    second = [r for r in read_jsonl(tmp_path / "checkpoints" / "allocations.jsonl") if r["step"] == 2]
    assert len({record["budget"] for record in second}) > 2
    assert all(record["pass_rate"] is not None for record in second)
    assert summary["heldout"]["num_problems"] == 16
    assert 0 <= summary["heldout"]["before"]["value"] <= 1
    print_summary(summary, as_json=False)
    shown = capsys.readouterr()
    assert "step 2/2" in shown.err
    assert "Held-out accuracy, avg@2 over 16 problems" in shown.out
    with pytest.raises(ConfigError, match="already holds a run"):
        run.prepare()


@pytest.mark.timeout(1300)
def test_a_job_that_fails_shows_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = VerlRun(tmp_path, "coba", steps=2, seed=0, overrides=("data.no_such_key=1",))
    run.prepare()
    with pytest.raises(ConfigError, match="verl ended with code"):
        run.train(timeout=1200)
    assert "no_such_key" in capsys.readouterr().err


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = VerlRun(tmp_path, "coba", steps=2, seed=0)
    with pytest.raises(ConfigError, match="--timeout"):
        run.train(timeout=0.1)
