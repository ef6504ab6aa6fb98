"""Sizes of a generation batch with which no strategy can do anything."""

from __future__ import annotations

import math

from coba_rl.hosts.trl.config import CobaGRPOConfig

_ENOUGH_PROMPTS = 32
"""What the advice aims at."""


def even_budgets_reason(config: CobaGRPOConfig) -> str | None:
    """Why every prompt must get the same number of rollouts, and what to set; None if budgets can differ.

    Example:
        >>> config = CobaGRPOConfig("out", use_cpu=True, bf16=False, num_generations=8)
        >>> even_budgets_reason(config)  # doctest: +ELLIPSIS
        'a generation batch is one prompt: 8 rollouts (per_device_train_batch_size=8 × ...'
    """
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
    for name, bound in (("min_budget", config.min_budget), ("max_budget", config.max_budget)):
        if bound == mean:
            return f"{name}={bound} is num_generations, the mean budget. Set min_budget below it and max_budget above"
    return None


def _steps(rollouts_a_pass: int, mean: int) -> int:
    """Fewest forward passes that hold enough prompts, and whole groups."""
    whole = mean // math.gcd(mean, rollouts_a_pass)
    return math.ceil(_ENOUGH_PROMPTS * mean / rollouts_a_pass / whole) * whole
