"""The suite that every host passes, on the TRL trainer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from trl_tiny import Tiny, prompts

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.hosts.session import FinishedStep
from coba_rl.testing import HostConformance
from coba_rl.testing.hosts import Judge, Trained

PROMPTS, MEAN = 4, 4


@pytest.mark.trl
class TestTrl(HostConformance):
    loses_rollouts = False
    has_two_rounds = True
    tiny: Tiny

    @pytest.fixture(autouse=True)
    def _use(self, tiny: Tiny) -> None:
        self.tiny = tiny

    def train(self, spec: AllocatorSpec, judge: Judge, folder: Path, steps: int, *, resume: bool) -> Trained:
        counted: Counter[tuple[str, int]] = Counter()  # through the waves of a step

        def judged(prompt_id: list[str], trainer_state: Any, **_: Any) -> list[float | None]:
            scores = []
            for one in prompt_id:
                scores.append(judge(one, counted[one, trainer_state.global_step]))
                counted[one, trainer_state.global_step] += 1
            return scores

        data = prompts(12).add_column("prompt_id", [f"prompt {i}" for i in range(12)])
        run = self.tiny.train(
            data=data,
            rewards=judged,
            output_dir=str(folder),
            strategy=spec.strategy,
            budget_unit=spec.budget_unit,
            pilot=spec.pilot,
            min_budget=spec.bounds[0],
            max_budget=spec.bounds[1],
            per_device_train_batch_size=PROMPTS * MEAN,
            gradient_accumulation_steps=1,
            num_generations=MEAN,
            max_steps=steps,
            save_strategy="steps",
            save_steps=steps,
            resume_from=str(folder / "checkpoint-3") if resume else None,
        )
        metrics = [log for log in run.logs if "coba/rollouts" in log]
        return Trained(
            run.trainer.allocator,
            [FinishedStep(records, log) for records, log in zip(run.records, metrics, strict=True)],
        )
