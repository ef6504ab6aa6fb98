"""What every strategy is: the life of one step, and the options all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from coba_rl import plugins
from coba_rl.allocation.capability import Capability
from coba_rl.allocation.estimators import PassRateEstimator, Visits, describe_estimator, make_estimator
from coba_rl.allocation.prompt_table import PromptId, PromptTable
from coba_rl.allocation.proportional import proportional
from coba_rl.allocation.solvers import SOLVERS, check_feasible, even_split
from coba_rl.allocation.token_solver import (
    affords,
    cheapest_even,
    check_tokens,
    most_even,
    spend_tokens,
    within_tokens,
)
from coba_rl.allocation.value import Gains
from coba_rl.errors import OptionError
from coba_rl.option_types import WithOptions


@dataclass(eq=False, kw_only=True)
class Strategy(WithOptions, ABC):
    """Decides how a step's rollouts are shared out. One object serves one training run.

    `begin(num_allocations)` comes first. The life of a step, driven by `BudgetAllocator`:

    1. `pass_rates(prompt_ids)`: what is believed of each prompt now (NaN: nothing).
    2. `allocate(pass_rates, total, low, high)`: budgets. The default gives prompts of unknown
       pass rate the even share and asks `plan` for the others.
    3. the rollouts are generated and judged. With a pilot, a first round of them is, before 2., and
       `pass_rates_given(prompt_ids, visits)` takes the place of 1. Who overrides one overrides both.
    4. `observe(visits)`: the outcomes move the capability and the pass rates.
    5. `metrics()`: numbers of the last allocation, for the run's log.

    `state_dict` and `load_state_dict` carry everything that these hooks remember but for the table of prompts,
    which `BudgetAllocator` saves beside it.

    To write a strategy, subclass this (or `GainStrategy`) as a dataclass, give it a `name` and a `plan`, and test
    it with `coba_rl.testing.StrategyConformance`. Every field is an option: keyword argument and config key.
    """

    name: ClassVar[str]
    budget_units: ClassVar[tuple[str, ...]] = ("rollouts",)
    """What its budgets can be limited by; `tokens` takes a `plan_tokens`."""

    window: int = 1
    """Steps k over which the failure rate is averaged (Eq. 6)."""
    estimator: str | dict | PassRateEstimator = "window"
    """How pass rates are estimated: `window`, `posterior`, `drift`, `ability`, your own as `"package.module:Class"`, a
    table of such a name and its options, `{"name": "posterior", "decay": 0.9}`, or an object."""

    def __post_init__(self) -> None:
        self.validate()
        self.capability = Capability(self.window)
        self._estimator = make_estimator(self.estimator)
        if self._estimator.in_use:
            raise OptionError(f"estimator={self.estimator!r} serves another strategy: make one for each.")
        self._estimator.in_use = True

    def options(self) -> dict[str, Any]:
        return {**super().options(), "estimator": describe_estimator(self._estimator)}

    def begin(self, num_allocations: int) -> None:
        """Called once before the first allocation of a training, a resumed one too; no part of the saved state.

        Args:
            num_allocations: Allocations of the whole training, at least 1.
        """

    def pass_rates(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        """(P,) current estimates; NaN where unknown."""
        return self._estimator.estimate(prompt_ids)

    def pass_rates_given(self, prompt_ids: Sequence[PromptId], visits: Visits) -> np.ndarray:
        """(P,) what `pass_rates` would be with outcomes of the step under way, which are not observed yet."""
        return self._estimator.estimate_given(prompt_ids, visits)

    def seen(self, prompt_ids: Sequence[PromptId]) -> np.ndarray:
        """(P,) bool: whether a rollout of the prompt has ever been judged."""
        return self._estimator.seen(prompt_ids)

    def interval(
        self, prompt_ids: Sequence[PromptId], level: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(P,) ends of the central interval of each pass rate; None when the estimator does not say how sure it is."""
        return self._estimator.interval(prompt_ids, level)

    def check_feasible(self, num_prompts: int, total: int, low: int, high: int) -> None:
        """Raise `InfeasibleBudgetError` when the strategy cannot spend `total` on so many prompts."""
        check_feasible(num_prompts, total, low, high)

    def allocate(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        """(P,) int64 budgets within [low, high] that sum to `total`.

        Args:
            p_P: Pass rates, NaN where unknown.
            total: Rollouts of the step; feasible.
            low: Fewest rollouts of a prompt.
            high: Most rollouts of a prompt.
        """
        return self._evenly_where_unknown(self.plan, p_P, total, low, high)

    def spread(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        """(P,) budgets for groups that show something, whatever the strategy prefers: in proportion to `contrast`.

        Args, Returns: as `allocate`.
        """

        def plan(p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
            return proportional(self.contrast(p_P, total / len(p_P)), total, low, high)

        return self._evenly_where_unknown(plan, p_P, total, low, high)

    def contrast(self, p_P: np.ndarray, mean_budget: float) -> np.ndarray:
        """(P,) how much of what a prompt can show a group of the mean budget shows, in [0, 1].

        By default 1 − p^n − (1−p)^n, the chance that n rollouts do not all score alike.
        """
        return 1.0 - p_P**mean_budget - (1.0 - p_P) ** mean_budget

    def _evenly_where_unknown(
        self, plan: Callable, p_P: np.ndarray, total: int, low: int, high: int
    ) -> np.ndarray:
        unknown = np.isnan(p_P)
        num_unknown = int(unknown.sum())
        # Counted, not summed over rows: where in the batch the unknown prompts stand must not matter.
        share = total * num_unknown // max(len(p_P), 1)
        budgets = np.empty(len(p_P), dtype=np.int64)
        budgets[unknown] = even_split(share, num_unknown)
        if num_unknown < len(p_P):
            budgets[~unknown] = plan(p_P[~unknown], total - share, low, high)
        return budgets

    @abstractmethod
    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        """As `allocate`, for prompts whose pass rates are all known."""

    def allocate_within(
        self, p_P: np.ndarray, cost_P: np.ndarray, total: int, low: int, high: int
    ) -> np.ndarray:
        """As `allocate`, with no more expected tokens than even budgets; the same budgets where these do not have more.

        Args:
            p_P, total, low, high: As for `allocate`.
            cost_P: Expected tokens of a rollout of each prompt, > 0.
        """
        budgets = self.allocate(p_P, total, low, high)
        tokens = total / max(len(p_P), 1) * float(cost_P.sum())
        if affords(tokens, cost_P, budgets):
            return budgets
        budgets, known = cheapest_even(cost_P, total), ~np.isnan(p_P)
        tokens -= float((cost_P * budgets)[~known].sum())
        if known.any():
            share = int(budgets[known].sum())
            budgets[known] = self.plan_tokens(p_P[known], cost_P[known], tokens, low, high, share)
        return budgets

    def allocate_tokens(
        self, p_P: np.ndarray, cost_P: np.ndarray, tokens: float, low: int, high: int
    ) -> np.ndarray:
        """(P,) int64 budgets within [low, high] of at most `tokens` expected tokens, whatever their sum.

        Prompts of unknown pass rate get what they would if all budgets were even.

        Raises:
            InfeasibleBudgetError: `low` rollouts of each prompt are expected to take more.
        """
        check_tokens(cost_P, tokens, low)
        budgets, known = most_even(cost_P, tokens, low, high), ~np.isnan(p_P)
        tokens -= float((cost_P * budgets)[~known].sum())
        if known.any():
            budgets[known] = self.plan_tokens(p_P[known], cost_P[known], tokens, low, high)
        return budgets

    def plan_tokens(
        self,
        p_P: np.ndarray,
        cost_P: np.ndarray,
        tokens: float,
        low: int,
        high: int,
        total: int | None = None,
    ) -> np.ndarray:
        """Budgets of at most `tokens` expected tokens, for prompts whose pass rates are all known.

        Args:
            p_P, cost_P, low, high: As for `allocate_within`.
            tokens: Even budgets fit in.
            total: What the budgets sum to; None: whatever is best.
        """
        raise NotImplementedError(f"{type(self).__name__} has budget_units={self.budget_units}")

    def value(
        self, p_P: np.ndarray, mean_budget: float, batch_P: np.ndarray | None = None
    ) -> np.ndarray | None:
        """What the mean budget is worth to prompts with the given pass rates, as of the coming allocation.

        Args:
            p_P: Pass rates, NaN where unknown.
            mean_budget: Rollouts a prompt of the batch gets on average.
            batch_P: Pass rates believed of the batch, where `p_P` are others, such as the true ones; they are what
                constants of the value function that depend on the batch come from.

        Returns:
            (P,) values ≥ 0, NaN where the pass rate is; None for a strategy without a value function of the pass rate.
        """
        return None

    def observe(self, visits: Visits) -> None:
        """Learn from one step's outcomes."""
        self.observe_success_rate(visits.success_rate)
        self._estimator.update(visits)

    def observe_success_rate(self, success_rate: float) -> None:
        """Take in how much of a step succeeded, and nothing of its prompts."""
        self.capability.update(1.0 - success_rate)

    def metrics(self) -> dict[str, float]:
        """Finite numbers of the last allocation, keys without the `coba/` prefix."""
        return {"failure_rate": self.capability.failure_rate}

    @property
    def prompts(self) -> PromptTable:
        """What is kept of each prompt ever seen."""
        return self._estimator.table

    @prompts.setter
    def prompts(self, table: PromptTable) -> None:
        self._estimator.table = table

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of everything but `prompts`."""
        return {"capability": self.capability.state_dict(), "estimator": self._estimator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.capability.load_state_dict(state["capability"])
        self._estimator.load_state_dict(state["estimator"])


@dataclass(eq=False, kw_only=True)
class GainStrategy(Strategy):
    """A strategy that maximises a sum of values whose marginal gains fall (Eq. 3), solved exactly."""

    budget_units: ClassVar[tuple[str, ...]] = ("rollouts", "tokens")

    solver: str | Callable = "fast"
    """`fast`, `heap` (Algorithm 1 as printed) or `dynamic-programming`, which all give the same value; your own as
    `"package.module:function"`, or a function (gains, total, low, high) → budgets. Limits of tokens have one of their own."""

    def __post_init__(self) -> None:
        given = self.solver
        self._solve: Callable = given if callable(given) else plugins.find(given, SOLVERS, kind="solver")
        super().__post_init__()

    def options(self) -> dict[str, Any]:
        return {**super().options(), "solver": plugins.reference(self._solve, SOLVERS)}

    @abstractmethod
    def gains(self, p_P: np.ndarray, mean_budget: float) -> Gains:
        """Marginal gains of prompts with the given pass rates.

        Args:
            p_P: Pass rates, none unknown.
            mean_budget: Rollouts a prompt of the batch gets on average.
        """

    def plan(self, p_P: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
        return self._solve(self.gains(p_P, total / len(p_P)), total, low, high)

    def plan_tokens(
        self,
        p_P: np.ndarray,
        cost_P: np.ndarray,
        tokens: float,
        low: int,
        high: int,
        total: int | None = None,
    ) -> np.ndarray:
        if total is None:
            return spend_tokens(self.gains(p_P, tokens / cost_P.sum()), cost_P, tokens, low, high)
        return within_tokens(self.gains(p_P, total / len(p_P)), cost_P, total, tokens, low, high)
