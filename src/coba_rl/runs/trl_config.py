"""From a run's configuration to TRL's. Imports torch and trl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from coba_rl.errors import CobaError, ConfigError
from coba_rl.hosts.trl import CobaGRPOConfig
from coba_rl.runs.config import RunConfig, TrainingConfig
from coba_rl.runs.trl_settings import check_training_parts, read_settings


def make_trl_config(config: RunConfig, output_dir: Path, max_completion_length: int) -> CobaGRPOConfig:
    """TRL's configuration of a run. Nothing is written and no weights are loaded.

    Args:
        config: The run's configuration; its section `trl` adds to what the others decide.
        output_dir: Where the trainer puts its checkpoints.
        max_completion_length: Tokens of a rollout.

    Raises:
        ConfigError: Sizes that do not divide, or a field or value that TRL cannot take.
    """
    further = read_settings(config.trl)
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_completion_length": max_completion_length,
        **_sizes(config.training),
        **_optimisation(config.training),
        **_budgets(config),
        **_records(config.training),
        **_device(),
    }
    try:
        args = CobaGRPOConfig(**{**settings, **further})
    except CobaError:
        raise
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses the configuration: {error}") from None
    check_training_parts(args)
    return args


def _sizes(training: TrainingConfig) -> dict[str, Any]:
    """P·G rollouts of a step, cut into optimiser updates, processes and forward passes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rollouts, updates = training.prompts_per_step * training.rollouts_per_prompt, training.updates_per_step
    if rollouts % (updates * world):
        raise ConfigError(
            f"training.updates_per_step={updates} on {world} process(es) does not divide the {rollouts} rollouts of a "
            "step into equal parts. Change it, training.prompts_per_step or training.rollouts_per_prompt."
        )
    each = rollouts // (updates * world)
    micro = training.micro_batch_size or each
    if each % micro:
        raise ConfigError(
            f"training.micro_batch_size={micro} does not divide the {each} rollouts that each process has in an update."
        )
    accumulation = each // micro
    return {
        "max_steps": training.steps * training.updates_per_step,
        "num_generations": training.rollouts_per_prompt,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation * training.updates_per_step,
    }


def _optimisation(training: TrainingConfig) -> dict[str, Any]:
    return {
        "seed": training.seed,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": training.warmup_steps,
        "weight_decay": 0.0,
        "beta": 0.0,
        "loss_type": "dapo",
        "epsilon": training.clip_low,
        "epsilon_high": training.clip_high,
        "temperature": training.temperature,
        "top_p": training.top_p,
    }


def _budgets(config: RunConfig) -> dict[str, Any]:
    """The section's own keys are fields of `CobaGRPOConfig`, the others options of the strategy."""
    options = config.allocation.model_extra or {}
    own = config.allocation.model_dump(exclude=set(options))
    mode = own.pop("mode")
    return {**own, "allocation_mode": mode, "strategy_options": options}


def _records(training: TrainingConfig) -> dict[str, Any]:
    save_every = training.save_every or max(1, training.steps // 10)
    return {
        "save_strategy": "steps",
        "save_steps": save_every * training.updates_per_step,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def _device() -> dict[str, Any]:
    """Weights are float32 everywhere, which is how TRL loads a model; on a GPU autocast computes in bfloat16.

    Weights in bfloat16 would not learn: it has 8 bits, so AdamW's steps of 1e-6 are rounded away.
    """
    on_gpu = torch.cuda.is_available()
    return {"use_cpu": not on_gpu, "bf16": on_gpu, "gradient_checkpointing": on_gpu}
