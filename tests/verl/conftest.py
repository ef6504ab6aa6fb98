"""What the tests of the verl host share: a tiny policy with data, and a way to run verl's own entry point."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Read once, when verl is first imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        # verl and its dependencies warn at import; their warnings are not ours to fix.
        warnings.simplefilter("ignore")
        importlib.import_module("coba_rl.hosts.verl")

sys.path.insert(0, str(Path(__file__).parent))  # for the helper module beside this file

NUM_TRAIN, NUM_VAL = 20, 8

JOB_TIMEOUT = 1200
"""Seconds. A job takes about one minute, and several beside other programs; only one that hangs takes longer."""

REWARD = '''
import os
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """The reward follows from the text, which is sampled; success from the prompt alone, which is not."""
    return {"score": float(len(solution_str) % 2), "acc": int(ground_truth) / 9, "niceness": float(os.nice(0))}


def compute_score_or_fail(data_source, solution_str, ground_truth, extra_info=None, **_):
    # A quarter, by the text: a step in which no prompt keeps two rollouts would end the job.
    if extra_info["split"] == "train" and zlib.crc32(solution_str.encode()) % 4 == 0:
        raise RuntimeError("this rollout is meant to fail")
    return {"score": 1.0, "acc": int(ground_truth) / 9}
'''


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy, 28 prompts, and a reward function: all that a job reads."""
    import pyarrow
    from pyarrow import parquet

    from coba_rl.tasks.policy import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("verl")
    build_model().save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "prefix-scan",
            "prompt": [{"role": "user", "content": f"{i % 10}+{i // 10}="}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 10)},
            "extra_info": {"index": i, "split": "train" if i < NUM_TRAIN else "val"},
        }
        for i in range(NUM_TRAIN + NUM_VAL)
    ]
    for name, part in (("train", rows[:NUM_TRAIN]), ("val", rows[NUM_TRAIN:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"{name}.parquet")
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="session")
def model(job_folder: Path) -> Any:
    """The model in float64, so that rounding never changes which token a uniform number selects."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(job_folder / "model", dtype=torch.float64).eval()


@dataclass(frozen=True)
class Job:
    """A finished job of `verl.trainer.main_ppo`."""

    log: str
    metrics: dict[int, dict[str, float]]
    """Of each training step."""
    checkpoints: Path

    @property
    def allocations(self) -> list[dict[str, Any]]:
        """Records of `allocations.jsonl`."""
        lines = (self.checkpoints / "allocations.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def budgets(self, step: int) -> list[int]:
        """Budgets of one step, in the order of submission."""
        return [record["budget"] for record in self.allocations if record["step"] == step]


@pytest.fixture(scope="session")
def run_job(job_folder: Path) -> Callable[..., Job]:
    """Run verl's entry point on the CPU platform: 6 prompts a step, 5 rollouts each on average."""

    def run(folder: Path, *overrides: str) -> Job:
        settings = {
            "hydra.searchpath": "[pkg://coba_rl.hosts.verl.cpu.conf]",
            "+coba": "cpu",
            "hydra.run.dir": folder / "hydra",
            "data.train_files": job_folder / "train.parquet",
            "data.val_files": job_folder / "val.parquet",
            "data.max_prompt_length": 8,
            "data.max_response_length": 4,
            "data.train_batch_size": 6,
            "data.seed": 1,
            "actor_rollout_ref.rollout.n": 5,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 6,
            "actor_rollout_ref.actor.optim.lr": 1e-3,
            "actor_rollout_ref.model.path": job_folder / "model",
            "reward.custom_reward_function.path": job_folder / "reward.py",
            "trainer.val_before_train": False,
            "trainer.save_freq": -1,
            "trainer.test_freq": -1,
            "trainer.total_epochs": 100,
            "trainer.default_local_dir": folder / "checkpoints",
        }
        command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo"]
        log = folder / "log.txt"
        with log.open("w") as stream:
            finished = subprocess.run(  # A job that hangs must not hang the tests.
                [*command, *(f"{key}={value}" for key, value in settings.items()), *overrides],
                cwd=folder,
                env={
                    **os.environ,
                    "VERL_PLATFORM": "cpu",
                    "VERL_USE_EXTERNAL_MODULES": "coba_rl.hosts.verl",
                },
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=JOB_TIMEOUT,
            )
        text = log.read_text()
        assert finished.returncode == 0, text[-6000:]
        return Job(text, _metrics(text), folder / "checkpoints")

    return run


def _metrics(log: str) -> dict[int, dict[str, float]]:
    number = r"(-?[\d.]+(?:e[+-]?\d+)?)"
    return {
        int(step): {
            name: float(value) for name, value in re.findall(rf" ([\w/@-]+):(?:np\.\w+\()?{number}", line)
        }
        for step, line in re.findall(r"step:(\d+) -(.*)", log)
    }


class FakeQueue:
    """Stands in for the TransferQueue: rows by key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    @staticmethod
    def row(reward: float, length: int = 3, **info: Any) -> dict[str, Any]:
        """What verl stores of a rollout, as far as the host reads it."""
        import torch

        scores = torch.zeros(length)
        scores[-1] = reward
        mask = torch.ones(length, dtype=torch.int64)
        return {"rm_scores": scores, "response_mask": mask, "extra_fields": {"reward_extra_info": info}}

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        rows = [self.rows[key] for key in keys]
        return list_of_dict_to_tensordict(
            [{name: row[name] for name in select_fields if name in row} for row in rows]
        )

    def kv_batch_put(self, *, keys: list[str], partition_id: str, fields: Any) -> Any:
        from transfer_queue import KVBatchMeta

        for name in fields.keys():  # noqa: SIM118  a TensorDict is no dictionary
            values = fields[name].unbind() if hasattr(fields[name], "unbind") else fields[name]
            for key, value in zip(keys, values, strict=True):
                self.rows[key][name] = value
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys])


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> FakeQueue:
    """The queue that the host reads from and writes to."""
    from coba_rl.hosts.verl import outcomes, rounds, weights

    fake = FakeQueue()
    for module in (outcomes, rounds, weights):
        monkeypatch.setattr(module, "tq", fake)
    return fake


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, queue: FakeQueue) -> SimpleNamespace:
    """What the trainer hands to verl, and what verl would hand back."""
    seen = SimpleNamespace(submitted=None, submissions=[], saved=[], loads=0, queue=queue)
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from coba_rl.hosts.state import read_state

    monkeypatch.setattr(PPOTrainer, "__init__", lambda self, config: None)

    def submit(self: Any, batch: Any) -> int:
        seen.submitted = batch
        seen.submissions.append(batch)
        return len(batch)

    def save(self: Any) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        assert read_state(folder) is not None, "the state must be whole before verl marks the checkpoint"
        seen.saved.append(self.global_steps)

    def load(self: Any) -> None:
        self.global_steps = seen.loads

    monkeypatch.setattr(PPOTrainer, "_submit_batch_to_rollout", submit)
    monkeypatch.setattr(PPOTrainer, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", load)
    return seen
