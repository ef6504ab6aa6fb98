"""With equal budgets, training is that of `GRPOTrainer` to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from trl import GRPOTrainer
from trl_tiny import CHARACTERS, prompts, text_of, varied

pytestmark = pytest.mark.trl


def short(completions: list[Any], **_: Any) -> list[float]:
    """A graded reward: the share of characters left unused."""
    return [1.0 - len(text_of(completion)) / 8 for completion in completions]


def sometimes_none(completions: list[Any], **_: Any) -> list[float | None]:
    """Judges only completions that start with a digit."""
    firsts = [text_of(completion)[:1] for completion in completions]
    return [float(CHARACTERS.find(first) < 5) if first.isdigit() else None for first in firsts]


def chat(count: int) -> Dataset:
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": prompt}] for prompt in prompts(count)["prompt"]]}
    )


def stream(count: int) -> IterableDataset:
    return prompts(count).to_iterable_dataset()


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "batch": {"scale_rewards": "batch"},
    "none": {"scale_rewards": "none"},
    "two rewards": {"rewards": [varied, short], "reward_weights": [1.0, 0.5]},
    "normalize then sum": {
        "rewards": [varied, short],
        "reward_weights": [1.0, 0.5],
        "multi_objective_aggregation": "normalize_then_sum",
    },
    "num_iterations": {"num_iterations": 2, "max_steps": 6},
    "accumulation": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "steps_per_generation": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "max_steps": 6,
    },
    "stream": {"data": stream},
    "chat": {"data": chat},
    "no rewards": {"rewards": [sometimes_none, short]},
    "only no rewards": {"rewards": sometimes_none},
    "kl": {"beta": 0.1},
    "workers": {"dataloader_num_workers": 2},
    "weights": {"own": {"allocation_mode": "weights"}},
    "tokens": {"own": {"budget_unit": "tokens"}},
    "masked": {"mask_truncated_completions": True},
    **{
        f"loss {loss}": {"loss_type": loss, "num_iterations": 2}
        for loss in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
    },
    "loss luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
}

OTHER_SPREAD = {"batch", "normalize then sum", "only no rewards"}
"""Where `GRPOTrainer` logs the spread of the batch, or none for one judged rollout, and we that of the group."""


@pytest.mark.parametrize("case", CASES)
def test_uniform_is_stock(tiny, case):
    options = dict(CASES[case])
    make_data = options.pop("data", prompts)
    own = options.pop("own", {})
    stock = tiny.train(GRPOTrainer, data=make_data(12), **options)
    coba = tiny.train(strategy="uniform", data=make_data(12), **options, **own)

    assert stock.losses == coba.losses
    assert stock.grad_norms == coba.grad_norms
    assert max(stock.grad_norms) > 0.0
    assert len(stock.generations) == len(coba.generations)
    for one, other in zip(stock.generations, coba.generations, strict=True):
        assert one["completions"] == other["completions"]
        assert torch.equal(one["advantages"], other["advantages"])
        assert one["logged_advantages"] == other["logged_advantages"]
    for name, value in stock.weights.items():
        assert torch.equal(value, coba.weights[name]), name
    other_spread = case in OTHER_SPREAD
    assert own_metrics(stock.logs, other_spread) == own_metrics(coba.logs, other_spread)


def own_metrics(logs: list[dict[str, Any]], other_spread: bool) -> list[dict[str, Any]]:
    """What `GRPOTrainer` logs, but for times."""
    left_out = ("coba/", "step_time", "train_", *["frac_reward_zero_std"] * other_spread)
    return [{name: value for name, value in log.items() if not name.startswith(left_out)} for log in logs]


def test_rounding_residue_is_the_one_difference(tiny):
    """Rewards that differ by one unit in the last place: stock makes a signal of it, we do not."""

    def noisy(completions: list[Any], **_: Any) -> list[float]:
        level = np.float32(1234.567)
        levels = (float(level), float(np.nextafter(level, np.float32(2000))))
        return [levels[len(text_of(completion)) % 2] for completion in completions]

    stock = tiny.train(GRPOTrainer, max_steps=1, rewards=noisy)
    coba = tiny.train(strategy="uniform", max_steps=1, rewards=noisy, success_threshold=1.0)
    assert stock.generations[0]["advantages"].abs().max() > 0.1
    assert coba.generations[0]["advantages"].abs().max() == 0.0
