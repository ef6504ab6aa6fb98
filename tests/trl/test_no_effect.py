"""Settings with which training looks healthy and something of it has no effect are announced."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from trl_tiny import prompts, varied

from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.hosts.trl.no_effect import even_budgets_reason, lost_updates_reason

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]

BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "activation_checkpointing": False}


def announced(make: Any) -> list[str]:
    """What of this kind is said while a trainer is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    said = [str(warning.message) for warning in caught]
    return [text for text in said if "All budgets will be equal" in text or "hardly learn" in text]


def test_the_default_sizes_of_trl_on_one_device_are_announced(tiny):
    sizes = {"num_generations": 8, "per_device_train_batch_size": 8}  # the defaults of GRPOConfig
    assert CobaGRPOConfig(**BASE).generation_batch_size == CobaGRPOConfig(**BASE).num_generations == 8
    (text,) = announced(lambda: tiny.trainer(**sizes))
    assert (
        "one prompt: 8 rollouts (per_device_train_batch_size=8 × 1 processes × steps_per_generation=1" in text
    )
    assert "gradient_accumulation_steps=32" in text
    assert announced(lambda: tiny.trainer(**sizes, strategy="uniform")) == []
    assert announced(lambda: tiny.trainer(**sizes, gradient_accumulation_steps=2)) == []


@pytest.mark.parametrize(("device", "mean"), [(8, 8), (16, 16), (4, 16), (12, 12), (1, 7)])
def test_what_is_advised_gives_budgets_that_can_differ(device, mean):
    sizes = {"per_device_train_batch_size": device, "num_generations": mean}
    reason = even_budgets_reason(CobaGRPOConfig(**BASE, **sizes, gradient_accumulation_steps=mean // device))
    assert reason is not None
    (steps,) = re.findall(r"gradient_accumulation_steps=(\d+)", reason)
    advised = CobaGRPOConfig(**BASE, **sizes, gradient_accumulation_steps=int(steps))
    assert even_budgets_reason(advised) is None
    assert advised.generation_batch_size // mean >= 32


@pytest.mark.parametrize("bound", ["min_budget", "max_budget"])
def test_a_bound_at_the_mean_is_announced(tiny, bound):
    (text,) = announced(lambda: tiny.trainer(**{bound: 4}))
    assert f"{bound}=4 is num_generations" in text


def bfloat16(tiny: Any, **options: Any) -> CobaGRPOTrainer:
    model = LlamaForCausalLM.from_pretrained(tiny.model_folder, dtype=torch.bfloat16)
    return CobaGRPOTrainer(
        model, varied, tiny.config(**options), prompts(12), processing_class=tiny.tokenizer
    )


def test_weights_that_steps_would_leave_as_they_were_are_announced(tiny):
    (text,) = announced(lambda: bfloat16(tiny, learning_rate=1e-6))
    assert 'dtype="float32"' in text
    assert announced(lambda: bfloat16(tiny, learning_rate=1e-2)) == []
    assert announced(lambda: tiny.trainer(learning_rate=1e-6)) == []


def test_continuous_batching_makes_such_weights_of_float32(tiny):
    config = CobaGRPOConfig(
        **BASE | {"bf16": True, "use_transformers_continuous_batching": True}, learning_rate=1e-6
    )
    weights = torch.nn.Linear(8, 8).parameters()
    assert "continuous_batching" in (lost_updates_reason(config, weights) or "")
