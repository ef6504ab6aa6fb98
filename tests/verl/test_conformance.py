"""The suite that every host passes, on the verl trainer's own methods between stand-ins for verl's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl_stand_ins import make_trainer, submit

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.hosts.session import FinishedStep
from coba_rl.hosts.verl.keys import parse_key
from coba_rl.hosts.verl.rounds import ROLLOUT_FIELD
from coba_rl.hosts.verl.trainer import CobaTrainerSync
from coba_rl.records import ALLOCATIONS_FILE, AllocationRecord, read_records
from coba_rl.testing import HostConformance
from coba_rl.testing.hosts import Judge, Trained

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

PROMPTS, BATCH, MEAN = 24, 8, 5


class Buffer(ReplayBuffer):
    """Has the rollouts of the last submission at once."""

    def __init__(self, stand_ins: SimpleNamespace, judge: Judge, ids: list[str]) -> None:
        self.stand_ins, self.judge, self.ids = stand_ins, judge, ids

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        batch, queue = self.stand_ins.submitted, self.stand_ins.queue
        assert len(batch) == batch_size
        uids = [str(uid) for uid in batch["uid"]]
        budgets = batch[ROLLOUT_FIELD].tolist() if ROLLOUT_FIELD in batch else [MEAN] * batch_size
        keys = []
        for key in (f"{u}_{i}_0" for u, n in zip(uids, budgets, strict=True) for i in range(n)):
            group, index, _ = parse_key(key)
            score = self.judge(self.ids[int(group.removeprefix("uid-"))], index)
            if score is not None:
                keys.append(key)
                queue.rows[key] = queue.row(0.0, acc=score) | {"uid": key.rsplit("_", 2)[0]}
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys]), {}


class TestVerl(HostConformance):
    has_two_rounds = True

    @pytest.fixture(autouse=True)
    def _use(self, stand_ins: SimpleNamespace) -> None:
        self.stand_ins = stand_ins

    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        low, high = spec.bounds
        trainer = make_trainer(
            folder,
            MEAN,
            BATCH,
            num_steps=steps,
            strategy=spec.strategy,
            min_budget=low,
            max_budget=high,
            budget_unit=spec.budget_unit,
            pilot=spec.pilot,
        )
        self.stand_ins.loads = 3 if resume else 0
        trainer._load_checkpoint()
        finished = [
            self.step(trainer, judge, number) for number in range(trainer.global_steps + 1, steps + 1)
        ]
        trainer._save_checkpoint()
        return Trained(trainer.session.allocator, finished)

    def step(self, trainer: CobaTrainerSync, judge: Judge, number: int) -> FinishedStep:
        trainer.global_steps = number
        ids = [f"s/{(number * BATCH + i) % PROMPTS}" for i in range(BATCH)]
        with patch.object(PPOTrainer, "_build_replay_buffer", lambda _: Buffer(self.stand_ins, judge, ids)):
            buffer = trainer._build_replay_buffer()
        submit(trainer, self.stand_ins, [prompt_id[2:] for prompt_id in ids])
        batch, metrics = buffer.sample(global_steps=number, partition_id="train", batch_size=BATCH)
        assert {self.stand_ins.queue.rows[key]["uid"] for key in batch.keys} <= {
            f"uid-{i}" for i in range(BATCH)
        }
        trainer._compute_advantage(batch, metrics)
        records = read_records(trainer.run_log.folder / ALLOCATIONS_FILE, AllocationRecord)
        return FinishedStep([record for record in records if record.step == number], metrics)
