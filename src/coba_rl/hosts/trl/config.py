"""`GRPOConfig` with the options of rollout allocation."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from trl import GRPOConfig

from coba_rl.allocation import STRATEGIES, BudgetAllocator
from coba_rl.allocation.strategies import strategy_class
from coba_rl.errors import ConfigError, OptionError, suggestion

_GRPO_FIELDS = frozenset(item.name for item in fields(GRPOConfig))


def option_field(option: str) -> str:
    """The config field of a strategy's option: the same name, or `coba_` + name where `GRPOConfig` has the name.

    Example:
        >>> option_field("kappa"), option_field("beta")
        ('kappa', 'coba_beta')
    """
    return f"coba_{option}" if option in _GRPO_FIELDS else option


OPTION_FIELDS: dict[str, str] = {
    item.name: option_field(item.name) for cls in STRATEGIES.values() for item in fields(cls)
}
"""Every option of the built-in strategies → the field that sets it."""


def _option(help_text: str) -> dict[str, str]:
    return {"help": f"{help_text} Unset: the strategy's own default."}


@dataclass
class CobaGRPOConfig(GRPOConfig):
    """`GRPOConfig` plus how rollouts are shared out among the prompts of a generation batch.

    `num_generations` is the **mean** number of rollouts of a prompt: a generation batch of N rollouts holds
    N / num_generations prompts and always N rollouts. Single prompts get `min_budget` to `max_budget` of them.

    Every option of the built-in strategies has a field of the same name; only `beta` (of `static-exploit` and
    `static-explore`) is called `coba_beta`, because `beta` is the KL coefficient. An unset field leaves the
    strategy's default; an option that the strategy does not have is an error. Fields are read from YAML files and
    the command line by `TrlParser`, like all of `GRPOConfig`.

    Raises:
        ConfigError: Budgets or batch sizes that do not fit together.
        UnknownStrategyError: No such strategy.
        OptionError: An option that the strategy does not have, or a value it cannot take.

    Example:
        >>> config = CobaGRPOConfig(
        ...     output_dir="out", use_cpu=True, bf16=False, activation_checkpointing=False,
        ...     per_device_train_batch_size=64, num_generations=16, strategy="coba", kappa=15.0,
        ... )
        >>> config.make_allocator().bounds, config.allocator_options()
        ((2, 128), {'kappa': 15.0})
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "strategy_options"]  # noqa: RUF012

    # --- Budgets ---
    strategy: str = field(
        default="coba",
        metadata={
            "help": f"How rollouts are shared out: {', '.join(STRATEGIES)}, or 'package.module:Class' of your own."
        },
    )
    min_budget: int = field(
        default=2,
        metadata={"help": "Fewest rollouts of a prompt. A group of one teaches nothing, so 2 or more."},
    )
    max_budget: int = field(default=128, metadata={"help": "Most rollouts of a prompt."})
    per_prompt_weighting: bool = field(
        default=False,
        metadata={
            "help": "Multiply advantages by num_generations / budget, so that every prompt weighs the same in the "
            "gradient. Off: a prompt's weight grows with its budget, as in the CoBA-RL paper."
        },
    )

    # --- What counts as success ---
    success_reward: str | None = field(
        default=None,
        metadata={
            "help": "Name of the reward function whose value is success. Unset: the first reward function. It is "
            "read before weighting; None and NaN are no attempt."
        },
    )
    success_threshold: float | None = field(
        default=None,
        metadata={
            "help": "A rollout succeeds when its success reward is at least this. Unset: the reward itself is graded "
            "success and must lie in [0, 1]."
        },
    )
    prompt_id_column: str = field(
        default="prompt_id",
        metadata={
            "help": "Column that identifies a prompt. Where the data lack it, prompts are identified by content."
        },
    )

    # --- Options of the strategies ---
    window: int | None = field(
        default=None, metadata=_option("Steps over which the failure rate is averaged.")
    )
    estimator: str | None = field(
        default=None, metadata=_option("How pass rates are estimated: window, posterior, drift or ability.")
    )
    visits: int | None = field(
        default=None, metadata=_option("Last visits of a prompt to average over (estimator window).")
    )
    prior: list[float] | None = field(
        default=None,
        metadata=_option("Two numbers a b: Beta prior of a prompt's pass rate (estimator posterior, drift)."),
    )
    decay: float | None = field(
        default=None,
        metadata=_option("Share of a prompt's old counts kept at each visit (estimator posterior, drift)."),
    )
    solver: str | None = field(
        default=None, metadata=_option("Budget solver: fast, heap or dynamic-programming. All are exact.")
    )
    kappa: float | None = field(
        default=None, metadata=_option("Concentration alpha + beta of the preferred pass rates.")
    )
    gamma: float | None = field(
        default=None, metadata=_option("Steepness of the transform of the failure rate.")
    )
    threshold: float | None = field(
        default=None, metadata=_option("Failure rate below which the transform acts.")
    )
    tau: float | None = field(
        default=None,
        metadata=_option("Saturation in rollouts: how fast more rollouts of a prompt lose value."),
    )
    tau_per_rollout: float | None = field(
        default=None, metadata=_option("Saturation as a share of the mean budget (coba).")
    )
    preferred_min: float | None = field(
        default=None, metadata=_option("Preferred pass rate of a policy that solves nothing (coba).")
    )
    preferred_max: float | None = field(
        default=None, metadata=_option("Preferred pass rate of a policy that solves everything (coba).")
    )
    alpha_min: float | None = field(
        default=None, metadata=_option("Smallest alpha, reached when nothing fails.")
    )
    alpha_max: float | None = field(
        default=None, metadata=_option("Largest alpha, reached when everything fails.")
    )
    scale: float | None = field(default=None, metadata=_option("How far the failure rate moves alpha."))
    num_steps: int | None = field(
        default=None,
        metadata={
            "help": "Allocations in the whole training (linear-decay). Unset: computed when training starts."
        },
    )
    alpha: float | None = field(
        default=None, metadata=_option("Alpha of the fixed preference (static-exploit, static-explore).")
    )
    coba_beta: float | None = field(
        default=None, metadata=_option("Beta of the fixed preference (static-exploit, static-explore).")
    )
    a: float | None = field(default=None, metadata=_option("Regularisation a (gvm)."))
    b: float | None = field(default=None, metadata=_option("Regularisation exponent b (gvm)."))
    strategy_options: dict | str | None = field(
        default=None,
        metadata={
            "help": "Options by name, for strategies of your own, and for setting an option to null. On the command "
            "line a JSON object."
        },
    )

    def __post_init__(self) -> None:
        self._check_budgets()
        try:
            super().__post_init__()
        except ValueError as error:
            self._explain_batch_size(error)
            raise
        self.make_allocator()

    def allocator_options(self) -> dict[str, Any]:
        """Options of the strategy that are set, by the strategy's own names.

        Raises:
            OptionError: An option given twice, or `strategy_options` that are no mapping.
        """
        set_fields = {option: getattr(self, name) for option, name in OPTION_FIELDS.items()}
        options = {option: value for option, value in set_fields.items() if value is not None}
        extra = self.strategy_options or {}
        if not isinstance(extra, dict):
            raise OptionError(
                f"strategy_options={extra!r}: expected option names and values, on the command line as a JSON "
                "object, e.g. '{\"kappa\": 15}'."
            )
        twice = sorted(options.keys() & extra.keys())
        if twice:
            raise OptionError(
                f"{', '.join(twice)}: given both as a field and in strategy_options. Remove one of them."
            )
        if "prior" in options:
            options["prior"] = tuple(options["prior"])
        return {**options, **extra}

    def make_allocator(self) -> BudgetAllocator:
        """A fresh allocator as configured.

        Raises:
            UnknownStrategyError: No such strategy.
            OptionError: An option that the strategy does not have, or a value it cannot take.
        """
        options = self.allocator_options()
        self._check_known(options)
        return BudgetAllocator(
            self.strategy,
            bounds=(self.min_budget, self.max_budget),
            success_threshold=self.success_threshold,
            **options,
        )

    def _check_known(self, options: dict[str, Any]) -> None:
        known = {item.name for item in fields(strategy_class(self.strategy))}  # type: ignore[arg-type]
        for option in options:
            if option not in known:
                name = OPTION_FIELDS.get(option, option)
                raise OptionError(
                    f"Strategy {self.strategy!r} has no option {name!r} (set to {options[option]!r}). "
                    f"{suggestion(name, (OPTION_FIELDS.get(item, item) for item in known))}"
                )

    def _check_budgets(self) -> None:
        low, mean, high = self.min_budget, self.num_generations, self.max_budget
        whole = isinstance(low, int) and isinstance(mean, int) and isinstance(high, int)
        if whole and 1 <= low <= mean <= high:
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
