"""What one lab run does, and the allocator it uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from coba_rl.allocation import BudgetAllocator
from coba_rl.allocation.strategies import make_strategy
from coba_rl.allocation.strategies.coba import BetaStrategy
from coba_rl.errors import OptionError

ESTIMATE_EXACT = "exact"
"""Estimator name of the lab's upper bound: the true pass rates, measured before each step."""

Share = Annotated[float, Field(ge=0, le=1)]


class LabConfig(BaseModel):
    """What one lab run does. Every field is a key of a study's file.

    Example:
        >>> LabConfig(regime="moderate", steps=60).rollouts
        61440
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    regime: Literal["hard", "heterogeneous", "moderate"] = "hard"
    """Regime of prefix-scan."""
    strategy: str = "coba"
    """Name of the allocation strategy."""
    options: dict[str, Any] = {}
    """Options of the strategy; `estimator = "exact"` gives it the true pass rates."""
    seed: int = Field(0, ge=0)
    """Of prompt order, sampling, noise, and the choice of unsolvable and solved prompts: a stream each."""
    train_prompts: int = Field(512, ge=1)
    """Prompts of the data set; with P prompts a step, a prompt comes back every train_prompts/P steps."""
    steps: int = Field(120, ge=1)
    """Training steps, cold start included."""
    prompts_per_step: int = Field(64, ge=1)
    """P."""
    rollouts_per_prompt: int = Field(16, ge=1)
    """G, mean budget: a step spends P·G."""
    min_budget: int = Field(2, ge=0)
    """Fewest rollouts of a prompt."""
    max_budget: int = Field(128, ge=1)
    """Most rollouts of a prompt."""
    learning_rate: float = Field(1.5e-4, gt=0)
    """Of AdamW."""
    unsolvable: Share = 0.0
    """Share of training prompts whose rollouts are always judged wrong."""
    solved: Share = 0.0
    """Share of training prompts whose rollouts are always judged right; none of them is `unsolvable`."""
    lucky: Share = 0.0
    """Chance that a wrong rollout is judged right."""
    value_threshold: Share = 0.0
    """Selection: prompts whose value (Eq. 9) is below this share of the batch's best get no rollout."""
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

    @property
    def rollouts(self) -> int:
        """Rollouts of `steps` steps."""
        return self.steps * self.rollouts_per_step

    @property
    def rollouts_per_step(self) -> int:
        """P·G."""
        return self.prompts_per_step * self.rollouts_per_prompt

    @property
    def is_exact(self) -> bool:
        """Whether the strategy is given the true pass rates."""
        return self.options.get("estimator") == ESTIMATE_EXACT

    def make_allocator(self) -> BudgetAllocator:
        """The allocator of the run.

        Raises:
            OptionError, UnknownStrategyError: The strategy or its options, or selection without a value.
        """
        options = {name: value for name, value in self.options.items() if value != ESTIMATE_EXACT}
        if self.strategy == "linear-decay":
            options = {"num_steps": self.steps, **options}
        strategy = make_strategy(self.strategy, **options)
        allocator = BudgetAllocator(strategy, bounds=(self.min_budget, self.max_budget))
        if self.value_threshold and not isinstance(allocator.strategy, BetaStrategy):
            raise OptionError(
                f"value_threshold={self.value_threshold}: {self.strategy!r} has no value function of the pass rate. "
                "Use coba, coba-paper or another strategy with α and β."
            )
        return allocator
