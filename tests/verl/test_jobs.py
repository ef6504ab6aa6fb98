"""Real jobs of verl's own entry point with CoBA budgets: Ray, TransferQueue, FSDP2, validation, checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coba_rl.hosts.state import read_state

# Time for two jobs that would hang.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default"), pytest.mark.timeout(2700)]

PROMPTS, MEAN = 6, 5
COBA = (
    "trainer.v1.trainer_mode=coba_sync",
    "+algorithm.coba.strategy=coba",
    "+algorithm.coba.min_budget=2",
    "+algorithm.coba.max_budget=12",
)
RunJob = Callable[..., Any]


def test_a_resumed_job_allocates_as_if_it_had_never_stopped(run_job: RunJob, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    saving = (*COBA, "trainer.total_training_steps=8", "trainer.save_freq=4", "trainer.test_freq=4")
    job = run_job(whole, *saving)
    assert "coba-rl: prompts are identified by data_source and extra_info.index" in job.log
    assert sorted(job.metrics) == list(range(1, 9))
    for step in range(1, 9):
        assert sum(job.budgets(step)) == PROMPTS * MEAN
        metrics = job.metrics[step]
        assert metrics["coba/rollouts"] == PROMPTS * MEAN
        assert metrics["coba/missing_rollouts"] == metrics["coba/padding_rows"] == 0
        assert 0 <= metrics["coba/score_per_prompt"] <= 1
        assert metrics["actor/grad_norm"] > 0
        # Rollout and trainer agree on the probabilities: the weights arrived, and sampling reports what it drew.
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
    assert all(2 <= record["budget"] <= 12 for record in job.allocations)
    assert max(job.budgets(8)) > MEAN > min(job.budgets(8))
    assert "val-core/prefix-scan/acc/mean@1" in job.metrics[4]
    # Ray's processes have the priority of their job: a program that keeps a core busy does not starve them.
    assert job.metrics[4]["val-aux/prefix-scan/niceness/mean@1"] == os.nice(0)

    # What a job leaves behind that is killed after step 6: the checkpoint of step 4, and records beyond it.
    shutil.copytree(whole / "checkpoints", resumed / "checkpoints", ignore=shutil.ignore_patterns("*_8"))
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    log = resumed / "checkpoints" / "allocations.jsonl"
    log.write_text(
        "".join(line for line in log.read_text().splitlines(True) if json.loads(line)["step"] <= 6)
    )
    again = run_job(resumed, *saving)
    assert sorted(again.metrics) == [5, 6, 7, 8]
    assert again.allocations == job.allocations
    states = [
        read_state(j.checkpoints / "global_step_8")["allocator"]["strategy_state"] for j in (job, again)
    ]
    assert states[0] == states[1]


def test_two_workers_survive_failed_rollouts(run_job: RunJob, tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        *COBA,
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=3",
        "trainer.save_freq=3",
        "reward.custom_reward_function.name=compute_score_or_fail",
    )
    assert sorted(job.metrics) == [1, 2, 3]
    for step, metrics in job.metrics.items():
        records = [record for record in job.allocations if record["step"] == step]
        missing = sum(record["budget"] - record["attempts"] for record in records)
        assert sum(record["budget"] for record in records) == PROMPTS * MEAN
        assert 0 < missing == metrics["coba/missing_rollouts"]
        # A rollout whose siblings all failed is not trained on; padding stands for it.
        assert metrics["coba/dropped_rows"] == sum(record["attempts"] == 1 for record in records)
        assert metrics["coba/padding_rows"] == missing + metrics["coba/dropped_rows"]
        assert metrics["coba/success_per_prompt"] == pytest.approx(
            sum(
                int(record["prompt_id"].rpartition("/")[2]) % 10 / 9
                for record in records
                if record["attempts"]
            )
            / sum(record["attempts"] > 0 for record in records)
        )
    ranks = list((job.checkpoints / "global_step_3" / "actor").glob("model_world_size_2_rank_*.pt"))
    assert len(ranks) == 2


def test_filtered_groups_are_refilled_and_observed(run_job: RunJob, tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        *COBA,
        "+algorithm.coba.success_key=score",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=score",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
        "trainer.total_training_steps=3",
    )
    assert sorted(job.metrics) == [1, 2, 3]
    dead = 0
    for step, metrics in job.metrics.items():
        records = [record for record in job.allocations if record["step"] == step]
        batch, refills = records[:PROMPTS], records[PROMPTS:]
        assert sum(record["budget"] for record in batch) == PROMPTS * MEAN
        assert sum(record["budget"] for record in refills) == len(refills) * MEAN
        assert all(2 <= record["budget"] <= 12 for record in records)
        assert metrics["coba/refill_prompts"] == len(refills)
        # Dead groups were generated and judged, although training never saw them.
        assert all(record["attempts"] == record["budget"] for record in records)
        dead += sum(record["successes"] in (0, record["attempts"]) for record in records)
        assert metrics["coba/budget_mean"] == MEAN
        # As many rows as without filtering, so as many optimizer steps.
        dump = (tmp_path / "rollouts" / f"{step}.jsonl").read_text()
        trained = [json.loads(line) for line in dump.splitlines()]
        assert len(trained) + metrics["coba/padding_rows"] == PROMPTS * MEAN
        # Cut to the total or not, each group still has what it was kept for.
        for prompt in {row["input"] for row in trained}:
            assert len({row["score"] for row in trained if row["input"] == prompt}) == 2
        rates = [record["successes"] / record["attempts"] for record in records]
        assert metrics["coba/score_per_prompt"] == pytest.approx(sum(rates) / len(rates))
    assert dead > 0


def test_the_rest_of_a_step_follows_what_its_pilot_scored(run_job: RunJob, tmp_path: Path) -> None:
    job = run_job(
        tmp_path,
        *COBA,
        "+algorithm.coba.pilot=3",
        "+algorithm.coba.success_key=score",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
        "trainer.total_training_steps=3",
    )
    assert sorted(job.metrics) == [1, 2, 3]
    assert len(set(job.budgets(1))) > 1  # nothing was known before this step
    for step, metrics in job.metrics.items():
        records = [record for record in job.allocations if record["step"] == step]
        assert sum(record["budget"] for record in records) == PROMPTS * MEAN
        assert min(record["budget"] for record in records) >= 3
        assert all(record["attempts"] == record["budget"] for record in records)
        assert metrics["coba/missing_rollouts"] == metrics["coba/padding_rows"] == 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-4  # both submissions met the same weights
        trained = (tmp_path / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        of_prompts = Counter(json.loads(line)["input"] for line in trained)
        assert sorted(of_prompts.values()) == sorted(job.budgets(step))


def test_uniform_budgets_are_stock_verl(run_job: RunJob, tmp_path: Path) -> None:
    def rollouts(name: str, *overrides: str) -> tuple[Any, list[list[tuple[str, str]]]]:
        folder = tmp_path / name
        folder.mkdir()
        job = run_job(
            folder,
            *overrides,
            "trainer.total_training_steps=2",
            f"trainer.rollout_data_dir={folder / 'rollouts'}",
        )
        dumps = [(folder / "rollouts" / f"{step}.jsonl").read_text().splitlines() for step in (1, 2)]
        return job, [sorted((r["input"], r["output"]) for r in map(json.loads, dump)) for dump in dumps]

    stock, expected = rollouts("stock", "trainer.v1.trainer_mode=sync")
    # Equal weights: advantages are read from the queue and written back unchanged.
    coba = ("+algorithm.coba.strategy=uniform", "+algorithm.coba.mode=weights")
    ours, given = rollouts("coba", "trainer.v1.trainer_mode=coba_sync", *coba)
    assert len(given[0]) == len(given[1]) == PROMPTS * MEAN
    assert given[0] == expected[0]
    # From the second step on, the weights differ in rounding: rows arrive in another order.
    assert [prompt for prompt, _ in given[1]] == [prompt for prompt, _ in expected[1]]
    assert ours.metrics[2]["actor/grad_norm"] == pytest.approx(stock.metrics[2]["actor/grad_norm"], rel=1e-3)
    assert {name for name in ours.metrics[2] if not name.startswith("coba/")} == set(stock.metrics[2])
    assert ours.metrics[2]["coba/padding_rows"] == 0
    assert ours.metrics[2]["coba/weight_max"] == 1
