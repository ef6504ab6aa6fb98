"""What one lab run does, and the allocator it uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from coba_rl.allocation import BudgetAllocator
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.errors import OptionError
from coba_rl.tasks import EmbeddedName
from coba_rl.tasks.embedded import EmbeddedTask, make_embedded

Share = Annotated[float, Field(ge=0, le=1)]


class LabConfig(BaseModel):
    """What one lab run does. Every field is a key of a study's file.

    Example:
        >>> LabConfig(regime="moderate", steps=60).rollouts
        61440
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: EmbeddedName = "prefix-scan"
    """Name of an embedded task."""
    regime: Literal["hard", "heterogeneous", "moderate"] = "hard"
    """Which policy of the task to start from."""
    strategy: str = "coba"
    """Name of the allocation strategy."""
    options: dict[str, Any] = {}
    """Options of the strategy."""
    exact_pass_rates: bool = False
    """Give the strategy the true pass rates, measured before each step, instead of its own estimates."""
    seed: int = Field(0, ge=0)
    """Of prompt order, sampling, noise, and the choice of unsolvable and solved prompts: a stream each."""
    train_prompts: int = Field(512, ge=1)
    """Prompts of the data set; with P prompts a step, a prompt comes back every train_prompts/P steps."""
    task_options: dict[str, Any] = Field({}, validate_default=True)
    """Further options of the task, e.g. `min_operators = 5`, or `graded = true`."""
    steps: int = Field(120, ge=1)
    """Most training steps, cold start included."""
    tokens: int | None = Field(None, ge=1)
    """Ends the run after the first step by which so many tokens are generated, at the latest after `steps`."""
    prompts_per_step: int = Field(64, ge=1)
    """P."""
    rollouts_per_prompt: int = Field(16, ge=1)
    """G, mean budget: a step spends P·G."""
    min_budget: int = Field(2, ge=0)
    """Fewest rollouts of a prompt."""
    max_budget: int = Field(128, ge=1)
    """Most rollouts of a prompt."""
    mode: Literal["rollouts", "weights", "both"] = "rollouts"
    """What the strategy decides, see `BudgetAllocator`: numbers of rollouts, how much a prompt's advantages count, or both."""
    pilot: int = Field(0, ge=0)
    """Rollouts of every prompt in a first round, which is looked at before the rest is shared out; 0: one round."""
    budget_unit: Literal["rollouts", "tokens"] = "rollouts"
    """tokens: in place of P·G rollouts, a step spends as many tokens as these are expected to generate in even budgets; the
    first step, before any length is known, P·G rollouts."""
    per_prompt_weighting: bool = False
    """Multiply advantages by mean budget / budget, so that every prompt weighs the same in the gradient."""
    learning_rate: float = Field(1.5e-4, gt=0)
    """Of AdamW."""
    scale_rewards: bool = True
    """Divide advantages by the standard deviation of their group's scores."""
    updates_per_batch: int = Field(1, ge=1)
    """Optimiser steps on each step's rollouts, with GRPO's clipped importance ratio."""
    unsolvable: Share = 0.0
    """Share of training prompts whose rollouts are always judged wrong."""
    solved: Share = 0.0
    """Share of training prompts whose rollouts are always judged right; none of them is `unsolvable`."""
    lucky: Share = 0.0
    """Chance that a wrong rollout is judged right."""
    min_value_share: Share = 0.0
    """Selection: prompts whose value is below this share of the batch's best get no rollout."""
    evaluate_every: int = Field(10, ge=1)
    """Steps between measurements of held-out accuracy."""

    @field_validator("solved")
    @classmethod
    def _check_disjoint(cls, solved: float, info: ValidationInfo) -> float:
        unsolvable = info.data.get("unsolvable", 0.0)
        if unsolvable + solved > 1.0 + 1e-9:
            raise ValueError(
                f"no prompt is both, so with unsolvable={unsolvable!r} expected at most the rest"
            )
        return solved

    @field_validator("task_options")
    @classmethod
    def _check_task(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        task, regime, num_train = map(info.data.get, ("task", "regime", "train_prompts"))
        if task and regime and num_train:  # else one of them is the mistake
            _embedded_task(task, regime, num_train, options)
        return options

    @property
    def rollouts(self) -> int:
        """Rollouts of `steps` steps, where tokens are not limited."""
        return self.steps * self.rollouts_per_step

    @property
    def rollouts_per_step(self) -> int:
        """P·G."""
        return self.prompts_per_step * self.rollouts_per_prompt

    def make_task(self) -> EmbeddedTask:
        """What the run trains on."""
        return _embedded_task(self.task, self.regime, self.train_prompts, self.task_options)

    def make_allocator(self) -> BudgetAllocator:
        """The allocator of the run.

        Raises:
            OptionError, UnknownStrategyError: The strategy or its options, selection without a value, or weights
                together with other weights, with selection, with a pilot or with limited tokens.
            InfeasibleBudgetError: The bounds or the pilot do not fit the rollouts of a step.
        """
        allocator = AllocatorSpec(
            strategy=self.strategy,
            bounds=(self.min_budget, self.max_budget),
            mode=self.mode,
            pilot=self.pilot,
            budget_unit=self.budget_unit,
            options=self.options,
        ).build()
        allocator.check_feasible(self.prompts_per_step, self.rollouts_per_step)
        allocator.begin(self.steps)
        if self.mode != "rollouts" and (self.per_prompt_weighting or self.min_value_share):
            other = "per_prompt_weighting" if self.per_prompt_weighting else "min_value_share"
            raise OptionError(
                f"mode={self.mode!r} with {other}={getattr(self, other)!r}: expected one of them. Leave the other out."
            )
        if self.min_value_share and allocator.strategy.value(np.array([0.5]), 1.0) is None:
            raise OptionError(
                f"min_value_share={self.min_value_share}: {self.strategy!r} has no value function of the pass rate. "
                "Use coba, knapsack or another strategy that has one."
            )
        return allocator


def _embedded_task(task: str, regime: str, num_train: int, options: dict[str, Any]) -> EmbeddedTask:
    for option, field in (("regime", "regime"), ("num_train", "train_prompts")):
        if option in options:
            raise OptionError(f"task_options has {option!r}: set {field!r} of the run instead.")
    return make_embedded(task, regime=regime, num_train=num_train, **options)
