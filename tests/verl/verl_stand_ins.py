"""A trainer whose verl side was never started, for the tests of its own methods."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu

from coba_rl.hosts.verl.rounds import ROLLOUT_FIELD
from coba_rl.hosts.verl.trainer import CobaTrainerSync


def make_trainer(
    tmp_path: Path, rollout_n: int, num_prompts: int, *, num_steps: int = 70, **coba: Any
) -> CobaTrainerSync:
    """A trainer whose verl side was never started."""
    config = OmegaConf.create(
        {
            "algorithm": {"coba": coba, "adv_estimator": "grpo"},
            "actor_rollout_ref": {"rollout": {"n": rollout_n}},
            "data": {"train_batch_size": num_prompts},
            "trainer": {
                "default_local_dir": str(tmp_path / "job"),
                "resume_mode": "auto",
                "v1": {"trainer_mode": "coba_sync"},
            },
        }
    )
    OmegaConf.set_struct(config, True)
    trainer = CobaTrainerSync(config)
    trainer.config = config
    trainer.steps_per_epoch, trainer.total_training_steps = 3, num_steps
    use_data(trainer, [{"data_source": "s", "extra_info": {"index": i}} for i in "abc"])
    return trainer


def use_data(trainer: CobaTrainerSync, rows: list[dict[str, Any]]) -> None:
    """As when the trainer reads its data."""
    trainer.train_dataset = SimpleNamespace(dataframe=datasets.Dataset.from_list(rows), prompt_key="prompt")
    with patch.object(PPOTrainer, "_init_dataloader", lambda self: None):
        trainer._init_dataloader()


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def submit(
    trainer: CobaTrainerSync, stand_ins: SimpleNamespace, prompt_ids: list[str], first: int = 0
) -> list[int]:
    """Submit a batch; the budgets verl's agent loop would read."""
    batch = tu.get_tensordict(
        {
            "uid": objects([f"uid-{first + i}" for i in range(len(prompt_ids))]),
            "data_source": objects(["s"] * len(prompt_ids)),
            "extra_info": objects([{"index": prompt_id} for prompt_id in prompt_ids]),
            "raw_prompt": objects([[{"role": "user", "content": i}] for i in prompt_ids]),
        }
    )
    trainer._submit_batch_to_rollout(batch)
    if ROLLOUT_FIELD not in stand_ins.submitted:
        return [trainer.mean_budget] * len(prompt_ids)
    return stand_ins.submitted[ROLLOUT_FIELD].tolist()
