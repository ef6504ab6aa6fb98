"""Two and three processes, one of which is late, judges nothing, fails or dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coba_rl.allocation import BudgetAllocator

pytestmark = [pytest.mark.trl, pytest.mark.timeout(1700)]

SCRIPT = Path(__file__).parent / "faulty_ranks.py"


def launch(num: int, tiny: Any, output: Path, *faults: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num)]
    return subprocess.run(
        [*launcher, str(SCRIPT), str(tiny.folder / "model"), str(output), *faults],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each process saw, by fault."""
    output = tmp_path_factory.mktemp("ranks")
    done = launch(request.param, tiny, output, "none", "late", "unjudged", "nan")
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.parametrize("fault", ["none", "late", "unjudged", "nan"])
def test_every_process_has_the_same_budgets_and_weights(ranks: list[Any], fault: str) -> None:
    first, *others = (one[fault] for one in ranks)
    for other in others:
        for what in ("budgets", "rates", "metrics", "weights"):
            assert other[what] == first[what], what
    assert all(sum(budgets.values()) == 8 * len(ranks) for budgets in first["budgets"])
    assert all(np.isfinite(values).all() for values in first["weights"].values())


def test_a_late_process_changes_nothing(ranks: list[Any]) -> None:
    assert ranks[0]["late"] == ranks[0]["none"]
    assert ranks[0]["late"]["weights"] != ranks[0]["unjudged"]["weights"]


@pytest.mark.parametrize("fault", ["unjudged", "nan"])
def test_rewards_that_one_process_lacks_are_counted_and_teach_nothing(ranks: list[Any], fault: str) -> None:
    seen = ranks[0][fault]
    allocator = BudgetAllocator("coba", bounds=(1, 12))
    for budgets, rates, rewards, metrics in zip(
        seen["budgets"], seen["rates"], seen["rewards"], seen["metrics"], strict=True
    ):
        missing = np.isnan(rewards)
        assert missing.tolist() == [False] * (8 * (len(ranks) - 1)) + [True] * 8
        assert metrics["coba/unjudged_rollouts"] == 8
        allocation = allocator.allocate(list(budgets), 8 * len(ranks))
        assert allocation.as_dict() == budgets
        np.testing.assert_array_equal(allocation.pass_rates, np.array(rates, dtype=float))
        ids = [prompt_id for prompt_id, budget in budgets.items() for _ in range(budget)]
        judged = [prompt_id for prompt_id, lost in zip(ids, missing, strict=True) if not lost]
        allocator.observe(judged, np.array(rewards)[~missing])


@pytest.mark.parametrize(
    ("num", "fault", "said"), [(3, "die", "Signal 9 (SIGKILL)"), (2, "raise", "the verifier is gone")]
)
def test_a_process_that_dies_ends_the_run_with_a_message(
    tiny: Any, tmp_path: Path, num: int, fault: str, said: str
) -> None:
    done = launch(num, tiny, tmp_path, fault)  # which ends before the collectives of the others time out
    assert done.returncode != 0
    assert said in done.stderr
    assert f"local_rank: {num - 1}" in done.stderr
    assert not list(tmp_path.glob("rank-*.json"))
