"""`GRPOConfig` with the options of rollout allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from coba_rl.allocation import STRATEGIES
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.errors import ConfigError, OptionError, suggestion


def _option(default: Any, text: str) -> Any:
    """A field that the command line explains by `text`."""
    return field(default=default, metadata={"help": text})


@dataclass
class CobaGRPOConfig(GRPOConfig):
    """`GRPOConfig` plus how rollouts are shared out among the prompts of a generation batch.

    `num_generations` is the **mean** number of rollouts of a prompt: a generation batch of N rollouts holds
    N / num_generations prompts and always N rollouts. Single prompts get `min_budget` to `max_budget` of them.

    `strategy_options` holds the options of the strategy by their names, `{"kappa": 15.0}`; one that is left out has
    the strategy's default, one that the strategy does not have is an error. Fields are read from YAML files and the
    command line by `TrlParser`, like all of `GRPOConfig`.

    Raises:
        ConfigError: Budgets or batch sizes that do not fit together.
        UnknownStrategyError: No such strategy.
        OptionError: An option that the strategy does not have, or a value it cannot take.

    Example:
        >>> config = CobaGRPOConfig(
        ...     output_dir="out", use_cpu=True, bf16=False, activation_checkpointing=False,
        ...     per_device_train_batch_size=64, num_generations=16, strategy="coba", strategy_options={"kappa": 15.0},
        ... )
        >>> config.allocator_spec().build().strategy.kappa
        15.0
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "strategy_options"]  # noqa: RUF012

    # --- Budgets ---
    strategy: str = _option(
        "coba",
        f"How rollouts are shared out: {', '.join(STRATEGIES)}, or 'package.module:Class' of your own.",
    )
    min_budget: int = _option(2, "Fewest rollouts of a prompt. A group of one teaches nothing, so 2 or more.")
    max_budget: int = _option(128, "Most rollouts of a prompt.")
    allocation_mode: str = _option(
        "rollouts",
        "rollouts: a prompt gets as many rollouts as the strategy gives it. weights: every prompt gets num_generations, "
        "and its advantages are multiplied by what the strategy makes of the step's outcomes. both: rollouts go where groups "
        "show something, and advantages are weighted too.",
    )
    budget_unit: str = _option(
        "rollouts",
        "rollouts: a step spends its rollouts as they are worth most. tokens: it spends as many, but with no more expected "
        "tokens than even budgets.",
    )
    pilot: int = _option(
        0,
        "Rollouts of every prompt in a first wave of generation, or min_budget where that is more; what they score decides "
        "who gets the rest, in a second wave. 0: one wave.",
    )
    per_prompt_weighting: bool = _option(
        False,
        "Multiply advantages by num_generations / budget, so that every prompt weighs the same in the gradient. Off: a "
        "prompt's weight grows with its budget, as in the CoBA-RL paper.",
    )

    # --- What counts as success ---
    success_reward: str | None = _option(
        None,
        "Name of the reward function whose value is success. Unset: the first reward function. It is read before "
        "weighting; None and NaN are no attempt.",
    )
    success_threshold: float | None = _option(
        None,
        "A rollout succeeds when its success reward is at least this. Unset: the reward itself is graded success and "
        "must lie in [0, 1].",
    )
    prompt_id_column: str = _option(
        "prompt_id",
        "Column that identifies a prompt. Where the data lack it, prompts are identified by content.",
    )

    strategy_options: dict | str | None = _option(  # noqa: RUF009
        None, "Options of the strategy by name. On the command line a JSON object."
    )

    def __post_init__(self) -> None:
        self._check_budgets()
        if self.per_prompt_weighting and self.allocation_mode == "weights":
            raise OptionError(
                "per_prompt_weighting=True gives every prompt the same weight, allocation_mode='weights' the strategy's: "
                "expected one of them. Leave the other out."
            )
        try:
            super().__post_init__()
        except ValueError as error:
            self._explain_batch_size(error)
            raise
        self.allocator_spec().build()  # raises on what it cannot take

    def allocator_spec(self) -> AllocatorSpec:
        """What the allocator is made of.

        Raises:
            OptionError: `strategy_options` are no mapping.
        """
        options = self.strategy_options or {}
        if not isinstance(options, dict):
            raise OptionError(
                f"strategy_options={options!r}: expected option names and values, on the command line as a JSON "
                "object, e.g. '{\"kappa\": 15}'."
            )
        return AllocatorSpec(
            strategy=self.strategy,
            bounds=(self.min_budget, self.max_budget),
            success_threshold=self.success_threshold,
            mode=self.allocation_mode,
            budget_unit=self.budget_unit,
            pilot=self.pilot,
            options=options,
        )

    def success_index(self, reward_names: Sequence[str]) -> int:
        """Position of the reward function that is success; the first one if `success_reward` is unset.

        Raises:
            ConfigError: No reward function has the name.
        """
        name = self.success_reward
        if name is not None and name not in reward_names:
            raise ConfigError(
                f"success_reward={name!r} is no reward function. {suggestion(name, reward_names)}"
            )
        return 0 if name is None else list(reward_names).index(name)

    def _check_budgets(self) -> None:
        low, mean, high = self.min_budget, self.num_generations, self.max_budget
        whole = isinstance(low, int) and isinstance(mean, int) and isinstance(high, int)
        if whole and 1 <= low <= mean <= high:
            self._check_pilot(mean)
            return
        advice = "Set three whole numbers."
        if whole:
            advice = (
                f"Set min_budget to 1 … {mean} and max_budget to at least {mean}, or change num_generations."
            )
        raise ConfigError(
            f"min_budget={low!r}, num_generations={mean!r}, max_budget={high!r}: num_generations is the mean budget "
            f"of a prompt, so 1 ≤ min_budget ≤ num_generations ≤ max_budget. {advice}"
        )

    def _check_pilot(self, mean: int) -> None:
        if isinstance(self.pilot, int) and self.pilot > mean:
            raise ConfigError(
                f"pilot={self.pilot!r}, num_generations={mean!r}: expected a pilot of at most num_generations, the mean "
                f"budget, and of fewer to leave something for the second wave. Set pilot to at most {mean}."
            )

    def _explain_batch_size(self, error: ValueError) -> None:
        """Raise a `ConfigError` that says what to set, if `error` is about the groups of the generation batch."""
        size, mean = self.generation_batch_size, self.num_generations
        if not size or not mean or size % mean == 0 or self.steps_per_generation is None:
            return
        raise ConfigError(
            f"A generation batch has {size} rollouts (per_device_train_batch_size={self.per_device_train_batch_size} "
            f"× {self.world_size} processes × steps_per_generation={self.steps_per_generation}), which is no multiple "
            f"of num_generations={mean}. Set per_device_train_batch_size, or steps_per_generation (by default "
            f"gradient_accumulation_steps), so that the product is a multiple of {mean}."
        ) from error
