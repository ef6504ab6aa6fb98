"""The suite that every host passes, on the verl trainer's own methods between stand-ins for verl's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_queue import KVBatchMeta
from verl_stand_ins import make_trainer, submit

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.hosts.session import FinishedStep
from coba_rl.hosts.verl.trainer import CobaTrainerSync
from coba_rl.records import ALLOCATIONS_FILE, AllocationRecord, read_records
from coba_rl.testing import HostConformance
from coba_rl.testing.hosts import Judge, Trained

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

PROMPTS, BATCH, MEAN = 24, 8, 5


class TestVerl(HostConformance):
    @pytest.fixture(autouse=True)
    def _use(self, stand_ins: SimpleNamespace) -> None:
        self.stand_ins = stand_ins

    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        low, high = spec.bounds
        trainer = make_trainer(
            folder, MEAN, BATCH, num_steps=steps, strategy=spec.strategy, min_budget=low, max_budget=high
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
        budgets = submit(trainer, self.stand_ins, [prompt_id[2:] for prompt_id in ids])
        scores = {
            f"uid-{i}_{session}_0": judge(prompt_id, session)
            for i, (prompt_id, budget) in enumerate(zip(ids, budgets, strict=True))
            for session in range(budget)
        }
        queue = self.stand_ins.queue
        queue.rows = {key: queue.row(0.0, acc=score) for key, score in scores.items() if score is not None}
        keys, metrics = [*queue.rows], dict[str, Any]()
        trainer._compute_advantage(
            KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys]), metrics
        )
        records = read_records(trainer.run_log.folder / ALLOCATIONS_FILE, AllocationRecord)
        return FinishedStep([record for record in records if record.step == number], metrics)
