"""Held-out problems go through the trainer's own generation, and training does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback
from trl_tiny import prompts, varied

from coba_rl.hosts.trl.heldout import engine, heldout_successes
from coba_rl.tasks.base import Problem, Task

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]


class Varied(Task):
    """The answer is the prompt, by which `varied` judges."""

    def train_problems(self) -> list[Problem]:
        return []

    def heldout_problems(self) -> list[Problem]:
        return [Problem(text, text, text) for text in prompts(7)["prompt"]]

    def score(self, completion: str, answer: str) -> float | None:
        return varied([answer], [completion])[0] if completion else None


PROBLEMS = Varied().heldout_problems()


def measure(trainer: Any, **options: Any) -> np.ndarray:
    settings = {"num_samples": 6, "batch_size": 10, **options}
    return heldout_successes(trainer, Varied(), PROBLEMS, **settings)


class AfterEachStep(TrainerCallback):
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.call()


def test_training_goes_on_as_if_nothing_had_been_measured(tiny):
    straight = tiny.train(max_steps=5)
    run, measured = tiny.trainer(max_steps=5), []
    run.trainer.add_callback(AfterEachStep(lambda: measured.append(measure(run.trainer))))
    run.trainer.train()
    assert all(torch.equal(value, straight.weights[name]) for name, value in run.weights.items())
    assert run.losses == straight.losses
    assert run.records == straight.records
    assert [sorted(log) for log in run.logs] == [sorted(log) for log in straight.logs]
    state, expected = (json.dumps(one.trainer.allocator.state_dict()) for one in (run, straight))
    assert state == expected
    assert len(measured) == 5
    assert not np.array_equal(measured[0], measured[-1], equal_nan=True)  # the policy of the time is measured


def test_the_result_is_the_policys_and_the_seeds(tiny):
    trainer = tiny.trainer().trainer
    torch.manual_seed(5)
    first, state = measure(trainer, seed=1), torch.get_rng_state()
    torch.rand(3)
    np.testing.assert_array_equal(measure(trainer, seed=1), first)
    assert not np.array_equal(measure(trainer, seed=2), first, equal_nan=True)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == (7, 6)
    assert len({tuple(row) for row in first.tolist()}) > 2  # copies of a prompt are sampled apart


def test_the_settings_are_the_evaluations_and_are_put_back_whatever_happens(tiny):
    trainer = tiny.trainer(temperature=0.5, top_k=3, repetition_penalty=1.5).trainer
    before = trainer.generation_config.to_dict(), trainer.num_generations_eval, trainer.model.training
    likeliest = measure(trainer, temperature=1e-6)
    assert np.array_equal(likeliest, likeliest[:, :1].repeat(6, axis=1), equal_nan=True)
    seen = []

    def fail(rows: list[Any]) -> Any:
        config = trainer.generation_config
        seen.append((config.temperature, config.top_p, config.top_k, config.repetition_penalty))
        raise RuntimeError("no generation")

    trainer._generate = fail
    with pytest.raises(RuntimeError, match="no generation"):
        measure(trainer, temperature=0.7, top_p=0.9)
    assert seen == [(0.7, 0.9, 0, 1.0)]
    after = trainer.generation_config.to_dict(), trainer.num_generations_eval, trainer.model.training
    assert after == before


class FakeVllm:
    """Stands in for TRL's vLLM: random completions, one a row or n a distinct prompt."""

    def __init__(self, trainer: Any, mode: str) -> None:
        self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty = 0.3, 0.5, 5, None, 1.2
        self.generation_kwargs: dict[str, Any] = {}
        self.requests: list[tuple[Any, ...]] = []
        self.num_syncs = 0
        trainer.use_vllm, trainer.vllm_mode, trainer.vllm_generation = True, mode, self
        trainer._last_loaded_step = -1

    def sync_weights(self) -> None:
        self.num_syncs += 1

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any) -> Any:
        settings = (self.temperature, self.top_p, self.top_k, self.min_p, self.repetition_penalty)
        self.requests.append((len(prompts), num_generations, settings, self.generation_kwargs.get("seed")))
        completions = [[int(token), 1] for token in torch.randint(2, 16, (len(prompts),))]
        return prompts, completions, [[[-1.0]] * 2 for _ in prompts], None


@pytest.mark.parametrize(("mode", "seed"), [("colocate", None), ("server", 4)])
def test_vllm_generates_when_it_is_on_all_rows_at_once_with_the_evaluations_settings(tiny, mode, seed):
    trainer = tiny.trainer().trainer
    vllm = FakeVllm(trainer, mode)
    first = measure(trainer, temperature=0.8, top_p=0.9, seed=4)
    assert vllm.requests == [(42, 6, (0.8, 0.9, 0, 0.0, 1.0), seed)]
    assert vllm.num_syncs == 1  # the weights of now
    assert (vllm.temperature, vllm.top_p, vllm.top_k, vllm.min_p, vllm.repetition_penalty) == (
        0.3,
        0.5,
        5,
        None,
        1.2,
    )
    assert vllm.generation_kwargs == {}
    np.testing.assert_array_equal(measure(trainer, temperature=0.8, top_p=0.9, seed=4), first)
    assert engine(trainer) == f"vllm {mode}"
