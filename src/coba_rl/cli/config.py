"""The configuration of a training run: typed, documented, from TOML and dotted overrides."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.cli.arguments import MAX_SEED
from coba_rl.config_file import read_toml, validated
from coba_rl.errors import ConfigError

SHIPPED = Path(__file__).parent.parent / "configs"
"""Configurations that come with the package, used by their names."""

Regime = Literal["hard", "heterogeneous", "moderate"]
Name = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class TaskConfig(_Section):
    """What is trained on, and what judges it."""

    name: Literal["prefix-scan", "math"] = "prefix-scan"
    """`prefix-scan` (embedded) or `math` (your data, judged by math-verify)."""
    regime: Regime = "hard"
    """Of prefix-scan: how much the warm-started policy already knows."""
    dataset: Name | None = None
    """Of math: parquet, JSONL, JSON or CSV file, or hub name, in DAPO-Math-17K's layout or with prompt and answer."""
    heldout: Name | None = None
    """Of math: a benchmark (aime24, aime25, amc23, math500, olympiadbench) or a file, never trained on."""


class PolicyConfig(_Section):
    """The model that is trained."""

    model: Name | None = None
    """Folder or hub name of a transformers causal language model; unset: the policy shipped for the regime."""


class AllocationConfig(BaseModel):
    """How many rollouts each prompt gets. Every option of the strategy is a key here, e.g. `kappa = 15`."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    strategy: str = "coba"
    """coba, coba-paper, coba-release, uniform, knapsack, static-exploit, static-explore, linear-decay,
    explore-exploit, variance, gvm, or your own as "package.module:Class"."""
    min_budget: int = 2
    """Fewest rollouts of a prompt."""
    max_budget: int = 128
    """Most rollouts of a prompt."""
    success_threshold: float | None = None
    """Reward from which a rollout counts as success; unset: the reward itself, in [0, 1]."""

    def spec(self) -> AllocatorSpec:
        """What the allocator is made of."""
        return AllocatorSpec.from_mapping(self.model_dump(), "allocation.")


class TrainingConfig(_Section):
    """GRPO through TRL's GRPOTrainer."""

    steps: int = Field(120, ge=1)
    """Steps: each allocates, generates, judges and learns from one batch of prompts."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Of data order, sampling and initialisation."""
    prompts_per_step: int = Field(64, ge=1)
    """P, prompts of a step."""
    rollouts_per_prompt: int = Field(16, ge=2)
    """G, mean rollouts of a prompt: a step spends P·G."""
    updates_per_step: int = Field(1, ge=1)
    """Optimiser steps on each batch of rollouts."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Rollouts a device holds in one forward pass; unset: all of an update."""
    learning_rate: float = Field(1.5e-4, gt=0)
    """Of AdamW, constant after warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises."""
    clip_low: float = Field(0.2, gt=0)
    """Lower clip of the importance ratio."""
    clip_high: float = Field(0.28, gt=0)
    """Upper clip of the importance ratio (clip-higher)."""
    temperature: float = Field(1.0, gt=0)
    """Of the rollouts."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Of the rollouts."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Tokens of a prompt; longer ones are left out. Unset: the task's."""
    max_completion_length: int | None = Field(None, ge=1)
    """Tokens of a rollout. Unset: the task's."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints; unset: a tenth of the run."""


class EvaluationConfig(_Section):
    """How held-out accuracy is measured, before, during and after training."""

    every: int = Field(0, ge=0)
    """Steps between measurements during training; 0: only before and after."""
    num_samples: int = Field(16, ge=1)
    """Completions a problem; accuracy is their mean (avg@k)."""
    temperature: float = Field(1.0, gt=0)
    """Of the completions."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Of the completions."""
    batch_size: int = Field(512, ge=1)
    """Completions that a process generates at a time; vLLM makes its own batches."""


class RunConfig(_Section):
    """One training run."""

    task: TaskConfig = TaskConfig()
    policy: PolicyConfig = PolicyConfig()
    allocation: AllocationConfig = AllocationConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    trl: dict[str, Any] = {}
    """Further fields of TRL's GRPOConfig, e.g. use_vllm = true; not those that the sections above decide."""


def load_config(path: Path | None, overrides: dict[str, dict[str, Any]]) -> RunConfig:
    """Read a TOML file, lay the overrides over it, and check the whole.

    Args:
        path: TOML file; None for the defaults.
        overrides: Section → key → value.

    Raises:
        ConfigError: Missing or malformed file, unknown key (with a suggestion), value of a wrong type.
        OptionError, UnknownStrategyError: From the allocation section.
    """
    values = read_toml(path, SHIPPED) if path is not None else {}
    for section, keys in overrides.items():
        target = values.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{section!r} is {target!r} in {path}: expected a section with keys.")
        target.update({key.replace("-", "_"): value for key, value in keys.items()})
    config = validated(RunConfig, values)
    _check(config)
    return config


def parse_overrides(overrides: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Read the values of `--section.key VALUE` as TOML; what is not TOML is text.

    Example:
        >>> parse_overrides({"allocation": {"kappa": "15", "strategy": "coba", "prior": "[1, 1]"}})
        {'allocation': {'kappa': 15, 'strategy': 'coba', 'prior': [1, 1]}}
    """
    return {
        section: {key: _parse_value(text) for key, text in keys.items()}
        for section, keys in overrides.items()
    }


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _check(config: RunConfig) -> None:
    training, allocation = config.training, config.allocation
    allocation.spec().build()  # raises on a bad strategy, option or bound
    if not allocation.min_budget <= training.rollouts_per_prompt <= allocation.max_budget:
        raise ConfigError(
            f"training.rollouts_per_prompt={training.rollouts_per_prompt} is the mean budget and must lie within "
            f"allocation.min_budget={allocation.min_budget} and max_budget={allocation.max_budget}."
        )
    rollouts = training.prompts_per_step * training.rollouts_per_prompt
    if rollouts % training.updates_per_step:
        raise ConfigError(
            f"training.updates_per_step={training.updates_per_step} does not divide the {rollouts} rollouts of a step."
        )
    micro = training.micro_batch_size or rollouts // training.updates_per_step
    if (rollouts // training.updates_per_step) % micro:
        raise ConfigError(
            f"training.micro_batch_size={micro} does not divide the {rollouts // training.updates_per_step} "
            "rollouts of an update."
        )
    for key in ("dataset", "heldout"):
        value = getattr(config.task, key)
        if config.task.name != "math" and value is not None:
            raise ConfigError(
                f"task.{key}={value!r} has no effect with task.name={config.task.name!r}: set task.name to 'math', "
                "or leave it out."
            )
    if config.task.name == "math" and config.task.dataset is None:
        raise ConfigError(
            "task.name='math' needs data: set task.dataset (or --dataset) to a file or hub name."
        )
    if config.task.name == "math" and config.policy.model is None:
        raise ConfigError(
            "task.name='math' needs a model: set policy.model (or --model) to a folder or hub name."
        )


def to_toml(config: RunConfig) -> str:
    """The whole configuration as TOML, each key with what it means."""
    lines = [tomli_w.dumps({"trl": config.trl})] if config.trl else []
    for name, field in RunConfig.model_fields.items():
        section = getattr(config, name)
        if not isinstance(section, BaseModel):
            continue
        lines.append(f"\n# {(type(section).__doc__ or field.description or '').splitlines()[0]}\n[{name}]\n")
        for key, key_field in type(section).model_fields.items():
            comment = " ".join((key_field.description or "").split())
            value = getattr(section, key)
            setting = f"# {key} is not set\n" if value is None else tomli_w.dumps({key: value})
            lines.append(f"# {comment}\n{setting}")
        for key, value in (section.model_extra or {}).items():
            lines.append(tomli_w.dumps({key: value}))
    return "".join(lines).lstrip()
