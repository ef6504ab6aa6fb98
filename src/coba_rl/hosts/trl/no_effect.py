"""Settings with which training looks healthy and something of it has no effect."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from coba_rl.hosts.trl.config import CobaGRPOConfig

_ENOUGH_PROMPTS = 32
"""What the advice aims at."""
_WEIGHTS_LOOKED_AT = 1000
"""Of each parameter."""


def no_effect(config: CobaGRPOConfig, parameters: Iterable[torch.nn.Parameter]) -> list[str]:
    """What of a training will have no effect, why, and what to set; empty if all will.

    Args:
        config: Of the training.
        parameters: Of the model. With DeepSpeed and FSDP, which keep weights in float32 beside them, give none.
    """
    even, lost = even_budgets_reason(config), lost_updates_reason(config, parameters)
    shared = "budgets" if config.allocation_mode == "rollouts" else "weights"
    reasons = {
        f"All {shared} will be equal, whatever strategy={config.strategy!r} wants": even,
        "The model will hardly learn": lost,
    }
    return [f"{what}: {why}." for what, why in reasons.items() if why is not None]


def even_budgets_reason(config: CobaGRPOConfig) -> str | None:
    """Why every prompt must get the same number of rollouts, and what to set; None if budgets can differ, or should not.

    Example:
        >>> config = CobaGRPOConfig("out", use_cpu=True, bf16=False, num_generations=8)
        >>> even_budgets_reason(config)  # doctest: +ELLIPSIS
        'a generation batch is one prompt: 8 rollouts (per_device_train_batch_size=8 × ...'
    """
    if config.strategy == "uniform":
        return None
    size, mean = int(config.generation_batch_size or 0), int(config.num_generations or 1)
    if size <= mean:
        each = config.per_device_train_batch_size * config.world_size
        return (
            f"a generation batch is one prompt: {size} rollouts (per_device_train_batch_size="
            f"{config.per_device_train_batch_size} × {config.world_size} processes × steps_per_generation="
            f"{config.steps_per_generation}) with num_generations={mean}. Budgets are shared out within a generation "
            f"batch: for {_ENOUGH_PROMPTS} prompts, set gradient_accumulation_steps={_steps(each, mean)} (or "
            "steps_per_generation, for several updates a batch), or raise per_device_train_batch_size"
        )
    for name in ("min_budget", "pilot", "max_budget"):
        if getattr(config, name) == mean:
            return f"{name}={mean} is num_generations, the mean budget. Set min_budget and pilot below it, max_budget above"
    return None


def _steps(rollouts_a_pass: int, mean: int) -> int:
    """Fewest forward passes that hold enough prompts, and whole groups."""
    whole = mean // math.gcd(mean, rollouts_a_pass)
    return math.ceil(_ENOUGH_PROMPTS * mean / rollouts_a_pass / whole) * whole


def lost_updates_reason(config: CobaGRPOConfig, parameters: Iterable[torch.nn.Parameter]) -> str | None:
    """Why most weights will never move, and what to set; None if they will.

    An AdamW step is about as large as the learning rate, and a weight in half precision that differs from it by more
    than two or three digits stays what it was.

    Example:
        >>> config = CobaGRPOConfig("out", use_cpu=True, bf16=False, learning_rate=1e-6)
        >>> weights = torch.nn.Linear(8, 8)
        >>> lost_updates_reason(config, weights.parameters()) is None
        True
        >>> lost_updates_reason(config, weights.to(torch.bfloat16).parameters())  # doctest: +ELLIPSIS
        'at learning_rate=1e-06, a step leaves ... weights in half precision as they were. ...'
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kept = total = 0
    for parameter in trained:
        weights = parameter.detach().flatten()[:_WEIGHTS_LOOKED_AT]
        if config.use_transformers_continuous_batching and config.bf16:
            weights = weights.to(torch.bfloat16)  # as GRPOTrainer does before it generates
        total += len(weights)
        if weights.dtype in (torch.bfloat16, torch.float16):
            kept += int((weights + config.learning_rate == weights).sum())
    if kept <= total / 2:
        return None
    return (
        f"at learning_rate={config.learning_rate:g}, a step leaves {kept / total:.0%} of the weights in half precision "
        'as they were. Load the model with dtype="float32" (or hand its name to the trainer, which does so); '
        "bf16=True still computes in bfloat16. use_transformers_continuous_batching casts the weights: leave it out"
    )
