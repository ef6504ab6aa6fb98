"""Two processes: the same budgets in both, those of one process, and resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trl_reference import reference_advantages
from trl_tiny import prompts
from trl_two_processes import NUM_PROMPTS, OPTIONS, graded, mixed

from coba_rl.tasks.base import content_id

pytestmark = [pytest.mark.trl, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ranks(tiny, tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two processes saw."""
    output = tmp_path_factory.mktemp("two")
    script = Path(__file__).parent / "trl_two_processes.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*launcher, str(script), str(tiny.folder / "model"), str(output)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = [json.loads((output / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert [one["num_processes"] for one in seen] == [2, 2]
    return seen


def test_both_processes_have_the_same_budgets_and_histories(ranks):
    for what in ("ids", "budgets", "state", "rewards", "weights"):
        assert ranks[0][what] == ranks[1][what], what
    assert any(len(set(budgets)) > 1 for budgets in ranks[0]["budgets"])
    assert all(sum(budgets) == 36 for budgets in ranks[0]["budgets"])


def test_every_process_keeps_its_number_of_rows_in_the_order_of_the_budgets(ranks):
    steps = zip(ranks[0]["ids"], ranks[0]["budgets"], ranks[0]["prompts"], ranks[1]["prompts"], strict=True)
    for ids, budgets, first, second in steps:
        assert len(first) == len(second) == 18
        expected = [prompt_id for prompt_id, budget in zip(ids, budgets, strict=True) for _ in range(budget)]
        assert [content_id(prompt) for prompt in first + second] == expected


def test_advantages_are_those_of_groups_that_cross_the_processes(ranks):
    for step, budgets in enumerate(ranks[0]["budgets"]):
        got = ranks[0]["advantages"][step] + ranks[1]["advantages"][step]
        rewards = np.array(ranks[0]["rewards"][step])
        expected = reference_advantages(rewards, np.ones(2), budgets, "group", "sum_then_normalize")
        np.testing.assert_allclose(got, expected, atol=1e-4)
        assert np.abs(expected).max() > 0.1


def test_weights_are_the_same_in_both_processes_and_scale_their_own_rows(ranks):
    largest = 1.0
    for first, second in zip(ranks[0]["weighted"], ranks[1]["weighted"], strict=True):
        assert first["weights"] == second["weights"]
        assert first["budgets"] == second["budgets"] == [4] * 9
        rewards = np.array(first["rewards"])
        expected = reference_advantages(rewards, np.ones(2), [4] * 9, "group", "sum_then_normalize")
        expected = expected * np.repeat(first["weights"], 4)
        np.testing.assert_allclose(first["advantages"] + second["advantages"], expected, atol=1e-4)
        largest = max(largest, *first["weights"])
    assert largest > 1.2


def test_two_waves_end_in_the_same_rows_a_process(ranks):
    assert ranks[0]["wave_state"] == ranks[1]["wave_state"]
    for first, second in zip(ranks[0]["waves"], ranks[1]["waves"], strict=True):
        assert first["budgets"] == second["budgets"]
        assert sum(first["budgets"]) == 36
        assert len(first["prompts"]) == len(second["prompts"]) == 18
        expected = np.repeat(np.array(first["ids"], dtype=object), first["budgets"])
        assert [content_id(prompt) for prompt in first["prompts"] + second["prompts"]] == expected.tolist()
        rewards, texts = np.array(first["rewards"]), first["completions"] + second["completions"]
        assert rewards[:, 1].tolist() == [len(text) / 8 for text in texts]  # each row has its own
        advantages = reference_advantages(
            rewards, np.ones(2), first["budgets"], "group", "sum_then_normalize"
        )
        np.testing.assert_allclose(first["advantages"] + second["advantages"], advantages, atol=1e-4)


def test_budgets_in_two_waves_equal_those_of_one_process(ranks, tiny):
    options = {**OPTIONS, "per_device_train_batch_size": 12, "save_strategy": "no", "pilot": 1}
    alone = tiny.train(rewards=[graded, mixed], data=prompts(NUM_PROMPTS), **options)
    budgets = [generation["allocation"].budgets.tolist() for generation in alone.generations]
    assert budgets == [step["budgets"] for step in ranks[0]["waves"]]
    assert any(len(set(step)) > 1 for step in budgets)


def test_budgets_equal_those_of_one_process(ranks, tiny):
    options = {**OPTIONS, "per_device_train_batch_size": 12, "save_strategy": "no"}
    alone = tiny.train(rewards=[graded, mixed], data=prompts(NUM_PROMPTS), **options)
    assert [generation["allocation"].prompt_ids for generation in alone.generations] == ranks[0]["ids"]
    assert [generation["allocation"].budgets.tolist() for generation in alone.generations] == ranks[0][
        "budgets"
    ]


def test_only_the_main_process_logs(ranks):
    assert [one["num_logged"] for one in ranks] == [len(ranks[0]["budgets"]), 0]


def test_resume_equals_no_interruption(ranks):
    for one in ranks:
        assert 0 < len(one["resumed_ids"]) < len(one["ids"])
        assert one["resumed_ids"] == one["ids"][-len(one["resumed_ids"]) :]
        assert one["resumed_budgets"] == one["budgets"][-len(one["resumed_ids"]) :]
        assert one["resumed_weights"] == one["weights"]


def test_all_processes_share_the_held_out_problems_and_training_does_not_notice(ranks):
    for one in ranks:
        assert (
            one["heldout_judged"] == 3 * 3 * 3
        )  # measurements × its 3 of 5 problems, one of them twice × samples
        assert one["heldout"] == ranks[0]["heldout"]
        assert np.shape(one["heldout"]) == (3, 5, 3)
        assert one["measured_weights"] == one["weights"]
