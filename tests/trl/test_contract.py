"""What the host relies on in TRL, transformers and accelerate. A failure here names what upstream has changed."""

from __future__ import annotations

import inspect
from typing import Any

import accelerate.utils
import pytest
import torch
import transformers.trainer_utils
from accelerate.data_loader import DataLoaderShard
from transformers import Trainer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import utils as trl_utils

METHODS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate": ["self", "prompts"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    "_get_train_sampler": ["self", "dataset"],
    "_set_signature_columns_if_needed": ["self"],
    "_get_output_dir": ["self", "trial"],
}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_are_wrapped_or_called(name):
    method = getattr(GRPOTrainer, name, None)
    assert method is not None, f"GRPOTrainer.{name} is gone: the host wraps or calls it."
    assert parameters(method) == METHODS[name], (
        f"GRPOTrainer.{name} has other parameters than the host passes on."
    )


def test_the_number_of_generations_is_an_argument_of_a_single_turn():
    found = parameters(GRPOTrainer._generate_single_turn)[:5]
    assert found == ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"], (
        "GRPOTrainer._generate_single_turn takes num_generations elsewhere: the host sets it to 1 for vLLM servers."
    )


def test_the_first_arguments_of_the_trainer():
    assert parameters(GRPOTrainer.__init__)[:4] == ["self", "model", "reward_funcs", "args"], (
        "GRPOTrainer takes model, reward_funcs, args in another order: the host passes them by position."
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("self._calculate_rewards(", "the host takes the rewards of all processes from this call"),
        (
            '"train" if self.model.training else "eval"',
            "the host tells training from evaluation the same way",
        ),
        ('"advantages": advantages', "the host replaces this entry"),
        ('"frac_reward_zero_std"', "the host corrects this metric"),
        ('self._logs["advantages"].extend', "the host corrects these logged values"),
        ("self.accelerator.process_index * len(prompts)", "the host slices the processes' rows the same way"),
        ("inp[key] = ", "rows are written into, so the host copies them"),
    ],
)
def test_how_generations_are_scored(text, why):
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert text in source, f"{text!r} is not in _generate_and_score_completions any more: {why}."


@pytest.mark.parametrize(
    ("function", "text", "why"),
    [
        (
            GRPOTrainer._generate,
            "return prompt_ids, completion_ids, tool_mask, completions,",
            "the fourth is read",
        ),
        (
            GRPOTrainer._generate,
            "completion_ids, logprobs = self._generate_single_turn(",
            "waves are put in there",
        ),
        (GRPOTrainer._generate, "self.state.num_input_tokens_seen +=", "what a wave adds is taken back"),
        (
            GRPOTrainer._generate_and_score_completions,
            "self._pending_extra_logs.get(column, [None] * len(prompts))",
            "columns of both waves are put in there",
        ),
        (GRPOTrainer._log_completion_extra, "self._pending_extra_logs[column].extend", "they are read there"),
        (GRPOTrainer._generate, "else self.num_generations_eval", "it is set for the measurement"),
        (GRPOTrainer._generate, "self._metrics[mode]", "what evaluation logs there is dropped"),
        *(
            (VLLMGeneration.generate, f" = self.{name}\n", "it is set for the measurement")
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        ),
        (
            VLLMGeneration.generate,
            '"generation_kwargs": self.generation_kwargs',
            "a server is seeded through it",
        ),
        (
            trl_utils.create_model_from_path,
            'kwargs.get("dtype", "float32")',
            "coba-rl train counts on float32",
        ),
    ],
)
def test_what_held_out_measurements_and_loading_by_name_rely_on(function, text, why):
    assert text in inspect.getsource(function), f"{text!r} is not in {function.__qualname__} any more: {why}."


def test_rewards_are_gathered():
    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    assert "rewards_per_func = gather(rewards_per_func)" in source, "_calculate_rewards no longer gathers."


def test_num_generations_matters_nowhere_else():
    """A new use of num_generations in training would have to learn about budgets."""
    users = {
        name
        for name, method in inspect.getmembers(GRPOTrainer, inspect.isfunction)
        if "self.num_generations" in inspect.getsource(method) and method.__module__ == GRPOTrainer.__module__
    }
    assert users == {
        "__init__",
        "get_train_dataloader",
        "_get_train_sampler",
        "_get_eval_sampler",
        "get_eval_dataloader",
        "_generate",
        "_generate_and_score_completions",
    }, "GRPOTrainer uses num_generations in other methods than the host knows."


def test_repeat_sampler():
    assert parameters(trl_utils.RepeatSampler.__init__) == [
        "self", "data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed",
    ], "RepeatSampler takes other arguments: EpochRepeatSampler.like copies them."  # fmt: skip
    sampler = trl_utils.RepeatSampler(range(3), 1)
    for name in (
        "data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed", "num_samples", "generator",
    ):  # fmt: skip
        assert hasattr(sampler, name), f"RepeatSampler.{name} is gone: EpochRepeatSampler reads it."
    assert not hasattr(sampler, "set_epoch"), (
        "RepeatSampler can set_epoch by itself now: EpochRepeatSampler may go."
    )


def test_the_epoch_reaches_the_sampler():
    assert hasattr(DataLoaderShard, "set_epoch"), "accelerate's data loader no longer passes set_epoch on."
    assert "set_epoch(epoch)" in inspect.getsource(Trainer._run_epoch), "Trainer no longer sets the epoch."


def test_nanstd():
    values = torch.tensor([[1.0, torch.nan, 3.0], [5.0, torch.nan, torch.nan]])
    std = trl_utils.nanstd(values, dim=1)
    assert std[0] == pytest.approx(2**0.5), "nanstd is not the Bessel-corrected deviation any more."
    assert torch.isnan(std[1]), "nanstd of one value is not NaN any more: the host relies on it."


def test_accelerate_and_transformers():
    for name in ("gather_object", "broadcast_object_list"):
        assert hasattr(accelerate.utils, name), f"accelerate.utils.{name} is gone."
    assert transformers.trainer_utils.PREFIX_CHECKPOINT_DIR == "checkpoint", "Checkpoints have other names."
    assert "_load_optimizer_and_scheduler" in inspect.getsource(Trainer._prepare_for_training), (
        "Trainer no longer loads the optimizer through _load_optimizer_and_scheduler: the host hangs on to it."
    )


def test_fields_of_the_config():
    names = set(GRPOConfig.__dataclass_fields__)
    for name in (
        "num_generations", "generation_batch_size", "steps_per_generation", "gradient_accumulation_steps",
        "per_device_train_batch_size", "scale_rewards", "multi_objective_aggregation", "num_iterations", "max_steps",
    ):  # fmt: skip
        assert name in names, f"GRPOConfig.{name} is gone."
    for name in ("should_save", "world_size", "_VALID_DICT_FIELDS"):
        assert hasattr(TrainingArguments, name), f"TrainingArguments.{name} is gone."


@pytest.mark.trl
def test_attributes_of_the_trainer(tiny):
    trainer = tiny.trainer(GRPOTrainer).trainer
    for name in (
        "accelerator", "state", "model", "args", "train_dataset", "reward_func_names", "reward_weights",
        "scale_rewards", "multi_objective_aggregation", "num_iterations", "environment_factories",
        "_signature_columns", "_tag_names", "tools", "rollout_func", "_pending_extra_logs",
    ):  # fmt: skip
        assert hasattr(trainer, name), f"GRPOTrainer has no attribute {name!r} any more."
    assert "train" in trainer._metrics, "GRPOTrainer keeps its metrics elsewhere."
    assert hasattr(trainer._logs["advantages"], "pop"), "The logged advantages are no deque any more."
    assert trainer.scale_rewards in ("group", "batch", "none")
    assert trainer.multi_objective_aggregation in ("sum_then_normalize", "normalize_then_sum")
