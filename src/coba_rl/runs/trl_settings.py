"""The section `trl`: fields of TRL's GRPOConfig, read by their types and checked. Imports torch and trl."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, cast

import torch
from pydantic import ConfigDict, TypeAdapter
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    Trainer,
    get_scheduler,
)
from transformers.integrations import get_reporting_integration_callbacks

from coba_rl.errors import ConfigError
from coba_rl.hosts.trl import CobaGRPOConfig
from coba_rl.packages import need

CHOICES: dict[str, Any] = {
    "loss_type": Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "scale_rewards": Literal["group", "batch", "none"] | bool,
    "importance_sampling_level": Literal["token", "sequence"],
    "multi_objective_aggregation": Literal["sum_then_normalize", "normalize_then_sum"],
    "vllm_mode": Literal["colocate", "server"],
    "vllm_importance_sampling_mode": Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ],
}
"""Fields that are `str` to TRL, which refuses a wrong one in the midst of training."""

_PACKAGES = {"use_vllm": "vllm", "use_liger_kernel": "liger_kernel", "deepspeed": "deepspeed"}
"""Fields → what they need."""

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    list: "a list",
}
"""Types as messages name them; any other is a table."""

_FILES = ("accelerator_config", "deepspeed", "fsdp_config")
"""Tables that may also be the name of a JSON file."""

_HELDOUT = "set the section evaluation, by which held-out accuracy is measured"
_RESUME = "a checkpoint has to hold all that --resume needs"
ELSEWHERE: dict[str, str] = {
    "output_dir": "set --output-dir",
    "resume_from_checkpoint": "give --resume",
    "seed": "set training.seed",
    "max_steps": "set training.steps",
    "num_train_epochs": "set training.steps",
    "num_generations": "set training.rollouts_per_prompt",
    "generation_batch_size": "set training.prompts_per_step",
    "steps_per_generation": "set training.updates_per_step",
    "num_iterations": "set training.updates_per_step",
    "per_device_train_batch_size": "set training.micro_batch_size",
    "gradient_accumulation_steps": "set training.micro_batch_size",
    "learning_rate": "set training.learning_rate",
    "warmup_steps": "set training.warmup_steps",
    "epsilon": "set training.clip_low",
    "epsilon_high": "set training.clip_high",
    "temperature": "set training.temperature",
    "top_p": "set training.top_p",
    "max_completion_length": "set training.max_completion_length",
    "save_steps": "set training.save_every",
    "save_strategy": "set training.save_every",
    "save_only_model": _RESUME,
    "logging_steps": "every step is logged",
    "logging_strategy": "every step is logged",
    "logging_first_step": "every step is logged",
    "strategy": "set allocation.strategy",
    "min_budget": "set allocation.min_budget",
    "max_budget": "set allocation.max_budget",
    "success_threshold": "set allocation.success_threshold",
    "allocation_mode": "set allocation.mode",
    "budget_unit": "set allocation.budget_unit",
    "pilot": "set allocation.pilot",
    "success_reward": "the only reward is that of the task",
    "reward_weights": "the only reward is that of the task",
    "prompt_id_column": "prompts are identified by the task",
    "remove_unused_columns": "the task needs all its columns",
    "strategy_options": "set them in the section allocation",
    **dict.fromkeys(
        (
            "do_eval", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_accumulation_steps",
            "per_device_eval_batch_size", "num_generations_eval", "load_best_model_at_end", "metric_for_best_model",
            "greater_is_better",
        ),
        _HELDOUT,
    ),
}  # fmt: skip
"""Fields that the run's own sections decide → where."""


def read_settings(section: dict[str, Any]) -> dict[str, Any]:
    """The fields of TRL's configuration that a run sets itself.

    A value takes the type of its field: `"False"` is false for a switch, `"15"` is a number, `"none"` leaves unset
    what may be unset, `'{"a": 1}'` is a table.

    Args:
        section: Field → value, as TOML and the command line have it.

    Raises:
        ConfigError: A field that does not exist, is decided elsewhere, needs a package that is not installed, or
            cannot take the value.

    Example:
        >>> read_settings({"use_vllm": "False", "beta": "0.04", "top_k": 5})
        {'use_vllm': False, 'beta': 0.04, 'top_k': 5}
    """
    types_by_field = _field_types()
    settings = {}
    for key, value in section.items():
        if key not in types_by_field:
            near = get_close_matches(key, types_by_field.keys() - ELSEWHERE.keys(), n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"Unknown config key 'trl.{key}'. {hint}Known are the fields of TRL's GRPOConfig."
            )
        if key in ELSEWHERE:
            raise ConfigError(f"Config key 'trl.{key}' cannot be set: {ELSEWHERE[key]}.")
        settings[key] = _read(key, types_by_field[key], value)
    for key, module in _PACKAGES.items():
        if settings.get(key):
            need([module], f"trl.{key}")
    return settings


def check_training_parts(args: CobaGRPOConfig) -> None:
    """Make what the trainer would make only when training starts: trackers, optimiser, schedule, filters of sampling.

    Raises:
        ConfigError: One is unknown, lacks a setting, or needs a package that is not installed.
    """
    parts: dict[str, Callable[[CobaGRPOConfig], Any]] = {
        "report_to": _make_trackers,
        "optim": Trainer.get_optimizer_cls_and_kwargs,
        "lr_scheduler_type": _make_schedule,
        "top_k": lambda args: args.top_k and TopKLogitsWarper(args.top_k),
        "min_p": lambda args: args.min_p is not None and MinPLogitsWarper(args.min_p),
        "repetition_penalty": lambda args: RepetitionPenaltyLogitsProcessor(args.repetition_penalty),
    }
    for key, make in parts.items():
        try:
            make(args)
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"Config key 'trl.{key}' is {_shown(getattr(args, key))}: {error}") from None


def _make_trackers(args: CobaGRPOConfig) -> None:
    for tracker in get_reporting_integration_callbacks(args.report_to):
        tracker()


def _make_schedule(args: CobaGRPOConfig) -> None:
    get_scheduler(
        args.lr_scheduler_type,
        torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate),
        num_warmup_steps=args.get_warmup_steps(args.max_steps),
        num_training_steps=args.max_steps,
        scheduler_specific_kwargs=cast(Any, args.lr_scheduler_kwargs),
    )


def _shown(value: Any) -> str:
    return repr(getattr(value, "value", value))


@cache
def _field_types() -> dict[str, Any]:
    hints = typing.get_type_hints(CobaGRPOConfig)
    found = {}
    for field in dataclasses.fields(CobaGRPOConfig):
        choices: Any = field.metadata.get("choices")
        narrowed: Any = Literal.__getitem__(tuple(choices)) if choices else CHOICES.get(field.name)
        is_optional = type(None) in _members(hints[field.name])
        if narrowed is not None and is_optional:
            narrowed = narrowed | None
        found[field.name] = hints[field.name] if narrowed is None else narrowed
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type: itself, or those of a union."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(typing.get_args(hint)) if is_union else (hint,)


def _read(key: str, hint: Any, value: Any) -> Any:
    members = _members(hint)
    kinds = {typing.get_origin(member) or member for member in members}
    try:
        if isinstance(value, str) and dict in kinds:
            return _read_table(key, value)
        word = value.lower() if isinstance(value, str) else ""
        if word in ("none", "null") and type(None) in kinds and str not in kinds:
            return None
        takes_bool = bool in kinds or Literal[False] in members
        if isinstance(value, bool) and not takes_bool:
            raise ValueError
        if word in ("true", "false") and takes_bool:
            value = word == "true"
        config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
        return TypeAdapter(hint, config=config).validate_python(value)
    except ValueError:
        named = dict.fromkeys(_named(member) for member in members if member is not type(None))
        raise ConfigError(f"Config key 'trl.{key}' is {value!r}: expected {' or '.join(named)}.") from None


def _read_table(key: str, text: str) -> Any:
    """A table written as JSON, or the name of a file that holds one."""
    if not text.startswith("{"):
        if key not in _FILES:
            raise ValueError
        return text
    return json.loads(text)


def _named(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    return _NAMES.get(typing.get_origin(kind) or kind, "a table")
