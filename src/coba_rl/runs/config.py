"""The configuration of a training run: typed, documented, from TOML and dotted overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.config_file import read_toml, validated
from coba_rl.errors import ConfigError
from coba_rl.tasks import EMBEDDED

SHIPPED = Path(__file__).parent.parent / "configs"
"""Configurations that come with the package, used by their names."""

Name = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class _OpenSection(_Section):
    model_config = ConfigDict(extra="allow")


class TaskConfig(_OpenSection):
    """What is trained on, and what judges it. Every option of the task is a key here, e.g. `num_train = 256`."""

    name: Name = "prefix-scan"
    """`prefix-scan` or `string-transform` (embedded), `math` (your data, judged by math-verify), or your own as "package.module:Class"."""
    regime: Name | None = Field(
        default_factory=lambda given: "hard" if given.get("name") in EMBEDDED else None
    )
    """Of embedded tasks: how much the warm-started policy already knows: hard, and for prefix-scan heterogeneous or
    moderate."""
    dataset: Name | None = None
    """Of math: parquet, JSONL, JSON or CSV file, or hub name, in DAPO-Math-17K's layout or with prompt and answer."""
    heldout: Name | None = None
    """A benchmark (aime24, aime25, amc23, math500, olympiadbench) or a file, never trained on, in place of the task's
    own held-out problems; not of embedded tasks."""

    def options(self) -> dict[str, Any]:
        """Options of the task itself."""
        given = self.model_dump(exclude={"name", "heldout"}, exclude_none=True)
        if self.name == "math" and "dataset" in given:
            given["data"] = given.pop("dataset")
        return given


class PolicyConfig(_Section):
    """The model that is trained."""

    model: Name | None = None
    """Folder or hub name of a transformers causal language model; unset: the policy shipped for the regime."""


class AllocationConfig(_OpenSection):
    """How many rollouts each prompt gets. Every option of the strategy is a key here, e.g. `kappa = 15`."""

    strategy: str = "coba"
    """coba, coba-paper, coba-release, uniform, knapsack, static-exploit, static-explore, linear-decay,
    explore-exploit, variance, gvm, or your own as "package.module:Class"."""
    min_budget: int = 2
    """Fewest rollouts of a prompt."""
    max_budget: int = 128
    """Most rollouts of a prompt."""
    success_threshold: float | None = None
    """Reward from which a rollout counts as success; unset: the reward itself, in [0, 1]."""
    mode: Literal["rollouts", "weights", "both"] = "rollouts"
    """rollouts: a prompt gets as many as the strategy gives it; weights: every prompt gets the mean, and the strategy says by
    the step's outcomes how much its advantages count; both: rollouts go where groups show something, and advantages are
    weighted too."""
    budget_unit: Literal["rollouts", "tokens"] = "rollouts"
    """tokens: a step has as many rollouts, but no more expected tokens than in even budgets."""
    pilot: int = Field(0, ge=0)
    """Rollouts of every prompt in a first round, which is looked at before the rest is shared out; 0: one round."""

    def spec(self) -> AllocatorSpec:
        """What the allocator is made of."""
        return AllocatorSpec.from_mapping(self.model_dump(), "allocation.")


class TrainingConfig(_Section):
    """GRPO through TRL's GRPOTrainer."""

    steps: int = Field(80, ge=1)
    """Steps: each allocates, generates, judges and learns from one batch of prompts."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Of data order, sampling and initialisation."""
    prompts_per_step: int = Field(64, ge=1)
    """P, prompts of a step."""
    rollouts_per_prompt: int = Field(16, ge=2)
    """G, mean rollouts of a prompt: a step spends P·G."""
    updates_per_step: int = Field(1, ge=1)
    """Optimiser steps on each batch of rollouts."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Rollouts a device holds in one forward pass; unset: all of an update."""
    learning_rate: float = Field(4e-4, gt=0)
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
    check_config(config)
    return config


def check_config(config: RunConfig) -> None:
    """Refuse sections that do not fit together, as far as that shows without data and model.

    Raises:
        ConfigError: A mean budget outside the bounds, or a task without its data or model.
        OptionError, UnknownStrategyError: From the allocation section.
    """
    training, allocation = config.training, config.allocation
    allocation.spec().build()
    if not allocation.min_budget <= training.rollouts_per_prompt <= allocation.max_budget:
        raise ConfigError(
            f"training.rollouts_per_prompt={training.rollouts_per_prompt} is the mean budget and must lie within "
            f"allocation.min_budget={allocation.min_budget} and max_budget={allocation.max_budget}."
        )
    _check_task(config.task, config.policy)


def _check_task(task: TaskConfig, policy: PolicyConfig) -> None:
    for key in ("dataset", "heldout"):
        value = getattr(task, key)
        if task.name in EMBEDDED and value is not None:
            raise ConfigError(
                f"task.{key}={value!r} has no effect with task.name={task.name!r}: set task.name to 'math', or leave "
                "it out."
            )
    if task.name == "math" and task.dataset is None:
        raise ConfigError(
            "task.name='math' needs data: set task.dataset (or --dataset) to a file or hub name."
        )
    if task.name not in EMBEDDED and policy.model is None:
        raise ConfigError(
            f"task.name={task.name!r} needs a model: set policy.model (or --model) to a folder or hub name."
        )


def to_toml(config: RunConfig) -> str:
    """The whole configuration as TOML, each key with what it means.

    Example:
        >>> "# Fewest rollouts of a prompt.\\nmin_budget = 2\\n" in to_toml(RunConfig())
        True
    """
    sections = {name: getattr(config, name) for name in RunConfig.model_fields if name != "trl"}
    parts = [_section_toml(name, section) for name, section in sections.items()]
    return "\n".join([tomli_w.dumps({"trl": config.trl}), *parts] if config.trl else parts)


def _section_toml(name: str, section: _Section) -> str:
    lines = [f"# {(type(section).__doc__ or '').splitlines()[0]}\n[{name}]\n"]
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        setting = f"# {key} is not set\n" if value is None else tomli_w.dumps({key: value})
        lines.append(f"# {' '.join((field.description or '').split())}\n{setting}")
    extra = section.model_extra or {}
    for key, value in sorted(extra.items(), key=lambda item: isinstance(item[1], dict)):
        lines.append(tomli_w.dumps({name: {key: value}} if isinstance(value, dict) else {key: value}))
    return "".join(lines)
