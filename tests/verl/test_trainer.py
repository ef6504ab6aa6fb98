"""The verl trainer's own methods, between stand-ins for verl's; and what it leaves on disk."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl_stand_ins import make_trainer, submit, use_data

from coba_rl.allocation.strategies.decay import LinearDecay
from coba_rl.errors import CobaError, ConfigError, StateError
from coba_rl.hosts.state import STATE_FILE
from coba_rl.hosts.verl.run_log import RunLog
from coba_rl.hosts.verl.trainer import CobaTrainerSync
from coba_rl.records import ALLOCATIONS_FILE, METRICS_FILE

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

# Written by the script of the same name, from the plain allocator.
ADVANTAGE = PPOTrainer._compute_advantage
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "host_outcomes.json").read_text())


def finish(
    trainer: CobaTrainerSync, stand_ins: SimpleNamespace, step: int, successes: list[list[int]]
) -> dict[str, float]:
    """Hand the step's rollouts back, in an order of their own, and with a padding row."""
    rows = {
        f"uid-{i}_{session}_0": stand_ins.queue.row(0.1 * success, 2 + session % 3, acc=success)
        for i, group in enumerate(successes)
        for session, success in enumerate(group)
    }
    keys = [*reversed(rows), "pad-7_0_0"]
    stand_ins.queue.rows = {**rows, "pad-7_0_0": stand_ins.queue.row(0.0)}
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    trainer.global_steps = step
    metrics: dict[str, float] = {}
    trainer._compute_advantage(KVBatchMeta(partition_id="train", keys=keys, tags=tags), metrics)
    return metrics


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda case: f"{case['strategy']}-{case['options']['estimator']}"
)
def test_budgets_equal_the_recorded_ones(
    case: dict[str, Any], tmp_path: Path, stand_ins: SimpleNamespace
) -> None:
    low, high = GOLDEN["bounds"]
    num_prompts = len(case["steps"][0]["prompt_ids"])
    trainer = make_trainer(
        tmp_path,
        GOLDEN["mean_budget"],
        num_prompts,
        num_steps=len(case["steps"]),
        strategy=case["strategy"],
        min_budget=low,
        max_budget=high,
        **case["options"],
    )
    for number, step in enumerate(case["steps"], 1):
        assert submit(trainer, stand_ins, step["prompt_ids"]) == step["budgets"]
        metrics = finish(trainer, stand_ins, number, step["successes"])
        assert metrics["coba/padding_rows"] == 1
        assert metrics["coba/missing_rollouts"] == 0
        assert metrics["coba/score_per_prompt"] == pytest.approx(metrics["coba/success_per_prompt"] / 10)
    records = [
        json.loads(line) for line in (trainer.run_log.folder / ALLOCATIONS_FILE).read_text().splitlines()
    ]
    assert [record["budget"] for record in records] == [b for step in case["steps"] for b in step["budgets"]]
    assert [record["successes"] for record in records] == [
        sum(group) for step in case["steps"] for group in step["successes"]
    ]


def test_equal_budgets_change_nothing_in_the_batch(tmp_path: Path, stand_ins: SimpleNamespace) -> None:
    trainer = make_trainer(tmp_path, 4, 3, strategy="uniform")
    submit(trainer, stand_ins, ["a", "b", "c"])
    assert set(stand_ins.submitted.keys()) == {"uid", "data_source", "extra_info", "raw_prompt"}


def test_weights_scale_the_advantages_that_verl_wrote(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, plain = stand_ins.queue, dict[str, torch.Tensor]()

    def compute(self: PPOTrainer, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        for key, row in rows.rows.items():
            row |= {"uid": key.rsplit("_", 2)[0], "response_mask": torch.ones(len(row["rm_scores"]))}
        ADVANTAGE(self, batch, metrics)
        plain.update({key: rows.rows[key]["advantages"].clone() for key in batch.keys})
        return batch

    monkeypatch.setattr(PPOTrainer, "_compute_advantage", compute)
    monkeypatch.setattr(inspect.getmodule(PPOTrainer), "tq", rows)
    trainer = make_trainer(tmp_path, 4, 2, strategy="knapsack", min_budget=1, max_budget=7, mode="weights")
    with open_dict(trainer.config):
        trainer.config.algorithm.update(use_kl_in_reward=False, gamma=1.0, lam=1.0)
    trainer.session.allocator.observe(["s/a"] * 2 + ["s/b"] * 2, [1, 0, 1, 1])
    assert submit(trainer, stand_ins, ["a", "b"]) == [4, 4]
    assert "__rollout_n__" not in stand_ins.submitted
    metrics = finish(trainer, stand_ins, 1, [[1, 0, 0, 1], [1, 1, 0, 1]])
    assert (metrics["coba/weight_min"], metrics["coba/weight_max"]) == (0.75, 1.25)
    assert min(values.abs().max() for key, values in plain.items() if not key.startswith("pad")) > 0.1
    for key, values in plain.items():
        weight = {"uid-0": 0.75, "uid-1": 1.25, "pad-7": 1.0}[key.rsplit("_", 2)[0]]
        torch.testing.assert_close(rows.rows[key]["advantages"], weight * values)
    submit(trainer, stand_ins, ["a", "b"])
    finish(trainer, stand_ins, 2, [[1, 0, 0, 1], [1, 0, 0, 1]])
    torch.testing.assert_close(rows.rows["uid-1_0_0"]["advantages"], plain["uid-1_0_0"])  # now alike


def test_verl_itself_sees_its_own_trainer_mode(tmp_path: Path, stand_ins: SimpleNamespace) -> None:
    assert make_trainer(tmp_path, 4, 3).config.trainer.v1.trainer_mode == "sync"


def test_state_is_saved_before_the_checkpoint_and_restored(
    tmp_path: Path, stand_ins: SimpleNamespace
) -> None:
    trainer = make_trainer(tmp_path, 4, 2, max_budget=7)
    for step in (1, 2):
        budgets = submit(trainer, stand_ins, ["a", "b"])
        finish(trainer, stand_ins, step, [[1] * budgets[0], [0, 1] + [0] * (budgets[1] - 2)])
        if step == 1:
            trainer._save_checkpoint()
            state = trainer.session.allocator.state_dict()
    assert stand_ins.saved == [1]
    resumed = make_trainer(tmp_path, 4, 2, max_budget=7)
    stand_ins.loads = 1
    resumed._load_checkpoint()
    assert resumed.session.allocator.state_dict() == state
    steps = [
        json.loads(line)["step"]
        for line in (resumed.run_log.folder / ALLOCATIONS_FILE).read_text().splitlines()
    ]
    assert steps == [1, 1]


def test_a_damaged_state_names_its_file(tmp_path: Path, stand_ins: SimpleNamespace) -> None:
    trainer = make_trainer(tmp_path, 4, 2)
    folder = tmp_path / "job" / "global_step_3"
    folder.mkdir(parents=True)
    (folder / STATE_FILE).write_text("{")
    stand_ins.loads = 3
    with pytest.raises(StateError, match=STATE_FILE):
        trainer._load_checkpoint()


def test_what_changed_since_the_checkpoint_is_warned_of(tmp_path: Path, stand_ins: SimpleNamespace) -> None:
    trainer = make_trainer(tmp_path, 4, 2)
    stand_ins.loads = trainer.global_steps = 3
    with pytest.warns(UserWarning, match="pass rates start anew"):
        trainer._load_checkpoint()
    budgets = submit(trainer, stand_ins, ["a", "b"])
    finish(trainer, stand_ins, 3, [[1] * budget for budget in budgets])
    trainer._save_checkpoint()
    other = make_trainer(tmp_path, 3, 2)
    use_data(other, [{"prompt": [{"role": "user", "content": text}]} for text in "ab"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other._load_checkpoint()
    said = [str(warning.message) for warning in caught]
    assert "actor_rollout_ref.rollout.n was 4 when the checkpoint was saved and is 3 now." in said
    assert "prompt_ids was 'index' when the checkpoint was saved and is 'content' now." in said
    assert any("2 of 2 prompts with a history are not in the training data any more" in line for line in said)


@pytest.mark.parametrize(
    ("step", "filters", "is_said"), [(2, False, True), (3, False, False), (3, True, True)]
)
def test_data_in_another_order_amid_an_epoch_are_warned_of(
    tmp_path: Path, stand_ins: SimpleNamespace, step: int, filters: bool, is_said: bool
) -> None:
    """An epoch has three steps; where groups are filtered, more prompts are drawn than that."""
    trainer = make_trainer(tmp_path, 4, 2)
    OmegaConf.update(trainer.config, "algorithm.filter_groups.enable", filters, force_add=True)
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in "abcdef"]
    for order in (rows, rows[::-1]):
        if order is not rows:
            trainer = make_trainer(tmp_path, 4, 2)
            OmegaConf.update(trainer.config, "algorithm.filter_groups.enable", filters, force_add=True)
        use_data(trainer, order)
        if order is rows:
            trainer.global_steps = stand_ins.loads = step
            trainer._save_checkpoint()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer._load_checkpoint()
        said = any("some prompts are visited twice and some not" in str(w.message) for w in caught)
        assert said == (is_said and order is not rows)


@pytest.mark.parametrize("name", [ALLOCATIONS_FILE, METRICS_FILE])
def test_a_damaged_record_is_an_error(tmp_path: Path, name: str) -> None:
    log = RunLog(tmp_path)
    log.truncate(0)
    (tmp_path / name).write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(StateError, match=name):
        log.truncate(1)


def test_metrics_are_written_beside_the_checkpoints(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(self: Any, batch: Any, metrics: dict[str, Any], *_: Any, **__: Any) -> None:
        metrics.update({"response_length/mean": np.float32(2.5), "text": "no number", "nan": math.nan})

    monkeypatch.setattr(PPOTrainer, "_compute_metrics", compute)
    trainer = make_trainer(tmp_path, 4, 2)
    trainer.global_steps = 5
    trainer._compute_metrics(None, {"coba/alpha": 2.0}, {}, global_steps=5, epoch=0)
    line = (trainer.run_log.folder / METRICS_FILE).read_text()
    assert json.loads(line) == {"step": 5, "coba/alpha": 2.0, "response_length/mean": 2.5}


def test_discarded_groups_are_observed(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, 2, 2)
    buffer = object.__new__(ReplayBuffer)
    tags = {"uid-0_0_0": {}, "uid-0_1_0": {}, "uid-1_0_0": {}}
    buffer.partitions = {"train": tags, "val": {"uid-0_0_0": {}}}
    cleared = []
    monkeypatch.setattr(ReplayBuffer, "_clear_groups", lambda self, partition, uids: cleared.append(uids))
    monkeypatch.setattr(PPOTrainer, "_build_replay_buffer", lambda self: buffer)
    stand_ins.queue.rows = {key: stand_ins.queue.row(0.0, acc=0.0) for key in tags}
    assert trainer._build_replay_buffer() is buffer
    submit(trainer, stand_ins, ["a", "b"])
    buffer._clear_groups("val", {"uid-0"})
    buffer._clear_groups("train", {"uid-0"})
    assert cleared == [{"uid-0"}, {"uid-0"}]
    records, _ = trainer.session.finish(1)
    assert [record.attempts for record in records] == [2, 0]


def stand_balancing_in(
    monkeypatch: pytest.MonkeyPatch, stand_ins: SimpleNamespace
) -> tuple[list[str], list[KVBatchMeta]]:
    """What the trainer clears from the queue, and the batches that it leaves for verl to balance."""
    cleared: list[str] = []
    balanced: list[KVBatchMeta] = []
    monkeypatch.setattr(
        stand_ins.queue, "kv_clear", lambda keys, partition_id: cleared.extend(keys), raising=False
    )
    monkeypatch.setattr("coba_rl.hosts.verl.trainer.tq", stand_ins.queue)
    monkeypatch.setattr(
        PPOTrainer, "_balance_batch", lambda self, batch, metrics: balanced.append(batch) or batch
    )
    return cleared, balanced


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_lone_rollout_is_observed_but_trained_on_only_where_nothing_is_compared(
    estimator: str, tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared, balanced = stand_balancing_in(monkeypatch, stand_ins)
    trainer = make_trainer(tmp_path, 3, 2)
    trainer.config.algorithm.adv_estimator = estimator
    submit(trainer, stand_ins, ["a", "b"])
    rows = ["uid-0_0_0", "uid-0_2_0", "uid-1_1_0", "uid-1_1_1"]
    stand_ins.queue.rows = {key: stand_ins.queue.row(1.0, acc=1.0) for key in rows}
    metrics: dict[str, float] = {}
    trainer.global_steps = 1
    trainer._balance_batch(KVBatchMeta(partition_id="train", keys=rows, tags=[{}] * 4), metrics)
    dropped = rows[2:] if estimator == "grpo" else []
    assert cleared == dropped
    assert balanced[0].keys == [key for key in rows if key not in dropped]
    assert metrics == {"coba/dropped_rows": len(dropped)}
    trainer._compute_advantage(balanced[0], metrics)
    records = [
        json.loads(line) for line in (trainer.run_log.folder / ALLOCATIONS_FILE).read_text().splitlines()
    ]
    assert [(record["successes"], record["attempts"]) for record in records] == [(2.0, 2), (1.0, 1)]


def test_a_step_of_lone_rollouts_says_what_happened(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_balancing_in(monkeypatch, stand_ins)
    trainer = make_trainer(tmp_path, 3, 2)
    trainer.global_steps = 7
    submit(trainer, stand_ins, ["a", "b"])
    batch = KVBatchMeta(partition_id="train", keys=["uid-0_0_0", "uid-1_2_0"], tags=[{}, {}])
    with pytest.raises(CobaError, match="no prompt of step 7 with two rollouts"):
        trainer._balance_batch(batch, {})


def test_filtered_batches_keep_to_the_total_and_all_their_rollouts_are_observed(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared, balanced = stand_balancing_in(monkeypatch, stand_ins)
    trainer = make_trainer(tmp_path, 4, 2)
    with open_dict(trainer.config):
        trainer.config.algorithm.filter_groups = {"enable": True}
    submit(trainer, stand_ins, ["a", "b"])
    submit(trainer, stand_ins, ["c"], first=2)  # a refill; two of its rollouts fail
    # The only winner of the second group is the last of its rollouts.
    groups = [0, 1, 0, 0], [0, 0, 0, 1], [0, 1]
    rows = {
        f"uid-{i}_{session}_0": value for i, group in enumerate(groups) for session, value in enumerate(group)
    }
    stand_ins.queue.rows = {key: stand_ins.queue.row(success, acc=success) for key, success in rows.items()}
    batch = KVBatchMeta(partition_id="train", keys=list(rows), tags=[{"seq_len": i} for i in range(10)])
    metrics: dict[str, float] = {}
    trainer._balance_batch(batch, metrics)
    assert cleared == ["uid-0_3_0", "uid-1_2_0"]
    assert balanced[0].keys == [key for key in rows if key not in cleared]
    assert [tag["seq_len"] for tag in balanced[0].tags] == [0, 1, 2, 4, 5, 7, 8, 9]
    assert metrics == {"coba/dropped_rows": 2.0}
    trainer.global_steps = 1
    trainer._compute_advantage(balanced[0], metrics)
    records = [
        json.loads(line) for line in (trainer.run_log.folder / ALLOCATIONS_FILE).read_text().splitlines()
    ]
    assert [(record["successes"], record["attempts"]) for record in records] == [(1.0, 4), (1.0, 4), (1.0, 2)]
    assert (metrics["coba/missing_rollouts"], metrics["coba/refill_prompts"]) == (2.0, 1.0)
    assert metrics["coba/score_per_prompt"] == pytest.approx((1 / 4 + 1 / 4 + 1 / 2) / 3)


def test_another_kind_of_sampler_is_left_alone(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, 2, 2)
    sampler = object()
    monkeypatch.setattr(PPOTrainer, "_build_replay_buffer", lambda self: sampler)
    with pytest.warns(UserWarning, match="no subclass of verl's ReplayBuffer"):
        assert trainer._build_replay_buffer() is sampler


def test_a_strategy_is_told_the_length_of_the_training(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    told: list[int] = []
    monkeypatch.setattr(LinearDecay, "begin", lambda self, num_allocations: told.append(num_allocations))
    make_trainer(tmp_path, 4, 2, strategy="linear-decay")
    assert told == [70]
    assert "identified by data_source and extra_info.index" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm.filter_groups.enable", True),
        ("trainer.v1.sampler.sync_refill_failed_groups", True),
        ("reward.reward_model.enable", True),
    ],
)
def test_what_a_pilot_cannot_go_with_is_refused_at_the_start(
    name: str, value: Any, tmp_path: Path, stand_ins: SimpleNamespace
) -> None:
    config = make_trainer(tmp_path, 4, 2, pilot=2).config
    OmegaConf.update(config, name, value, force_add=True)
    config.trainer.v1.trainer_mode = "coba_sync"
    with pytest.raises(ConfigError, match=r"algorithm\.coba\.pilot=2 with .*=\w+: expected"):
        CobaTrainerSync(config)


def test_a_pilot_of_the_whole_step_is_submitted_once(
    tmp_path: Path, stand_ins: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"uid-{i}_{k}_0" for i in range(2) for k in range(4)]
    stand_ins.queue.rows = {key: stand_ins.queue.row(0.0, acc=1.0) for key in rows}
    batch = KVBatchMeta(partition_id="train", keys=rows, tags=[{} for _ in rows])
    buffer = SimpleNamespace(sample=lambda **_: (batch, {"taken": 1}))
    monkeypatch.setattr(PPOTrainer, "_build_replay_buffer", lambda self: buffer)
    trainer = make_trainer(tmp_path, 4, 2, pilot=4)
    with pytest.warns(UserWarning, match="no subclass"):
        sample = trainer._build_replay_buffer().sample
    submit(trainer, stand_ins, ["a", "b"])
    asked = {"global_steps": 1, "batch_size": 2}
    assert sample(partition_id="val", **asked) == (batch, {"taken": 1})
    assert sample(partition_id="train", **asked) == (batch, {"taken": 1})
    assert len(stand_ins.submissions) == 1
    assert trainer.session.finish(1).records[0].attempts == 4
