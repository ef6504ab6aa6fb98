"""`BudgetAllocator`: what a trainer talks to, once before and once after each step's rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coba_rl.allocation.allocation import Allocation
from coba_rl.allocation.allocator_state import Remembers
from coba_rl.allocation.checks import (
    check_bounds,
    check_budget_unit,
    check_budgets,
    check_even,
    check_in_pilot,
    check_lengths,
    check_mode,
    check_num_allocations,
    check_pilot,
    check_rates,
    check_room,
    check_threshold,
    check_total,
)
from coba_rl.allocation.metrics import measure_allocation, measure_weights
from coba_rl.allocation.outcomes import Outcomes
from coba_rl.allocation.prompt_table import PromptId, check_prompt_ids
from coba_rl.allocation.rounds import FirstRound
from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies import Strategy, make_strategy
from coba_rl.allocation.success import as_success
from coba_rl.allocation.token_limit import TokenLimit
from coba_rl.allocation.weights import prompt_weights
from coba_rl.errors import CobaError


class BudgetAllocator(Remembers):
    """Gives each prompt of a batch its number of rollouts, and learns from what the rollouts scored.

    Args:
        strategy: Name of a built-in strategy, `"package.module:Class"`, or a `Strategy` object.
        bounds: (fewest, most) rollouts of a prompt, 1 ≤ fewest ≤ most.
        success_threshold: None: success is graded, any number in [0, 1]. A number: a rollout succeeds when
            its score is at least this, up to the rounding of float32: 0.9 is met by a float32 reward of 0.9.
        mode: `rollouts`: a prompt gets as many rollouts as the strategy gives it. `weights`: every prompt gets the
            same number, and the strategy says by `weigh` how much its advantages count. `both`: rollouts go where groups
            show something (`Strategy.spread`), and `weigh` says what counts.
        pilot: Rollouts that every prompt gets in a first round, or `fewest` where that is more; what they score decides
            who gets the rest. 0: one round.
        budget_unit: `rollouts`: a step spends its total as it is worth most. `tokens`: it keeps to a limit of expected
            tokens as well, and `observe` needs the lengths of rollouts.
        **options: Options of the strategy, see its fields.

    Raises:
        UnknownStrategyError: No such strategy.
        OptionError: An option that the strategy does not have, a value it cannot take, or two that do not go together.

    Example:
        >>> allocator = BudgetAllocator("coba-paper", bounds=(2, 16))
        >>> first = allocator.allocate(["easy", "mid", "hard"], total=24)
        >>> first.budgets.tolist()  # nothing known yet
        [8, 8, 8]
        >>> allocator.observe(["easy"] * 8 + ["mid"] * 8 + ["hard"] * 8, [1] * 8 + [1, 0] * 4 + [1] + [0] * 7)
        >>> allocator.allocate(["easy", "mid", "hard"], total=24).as_dict()
        {'easy': 2, 'mid': 16, 'hard': 6}
    """

    def __init__(
        self,
        strategy: str | Strategy = "coba",
        *,
        bounds: tuple[int, int] = (2, 128),
        success_threshold: float | None = None,
        mode: str = "rollouts",
        pilot: int = 0,
        budget_unit: str = "rollouts",
        **options: Any,
    ) -> None:
        self.strategy = make_strategy(strategy, **options)
        self.bounds = check_bounds(bounds)
        self.success_threshold = check_threshold(success_threshold)
        self.mode = check_mode(mode)
        self.pilot = check_pilot(pilot, self.bounds, self.mode)
        self.budget_unit = check_budget_unit(budget_unit, self.mode, self.strategy)
        self._limit = TokenLimit(self.strategy, self.budget_unit)
        self._first_round: FirstRound | None = None
        self._step = 0
        self._allocation_metrics: dict[str, float] = {}
        self._outcome_metrics: dict[str, float] = {}

    def begin(self, num_allocations: int) -> None:
        """Say how many allocations the whole training has, before its first one and again after a resume.

        Only strategies that follow the calendar need it.

        Args:
            num_allocations: A whole number of at least 1.

        Raises:
            OptionError: Another value.
        """
        self.strategy.begin(check_num_allocations(num_allocations))

    def check_feasible(self, num_prompts: int, total: int) -> None:
        """Raise `InfeasibleBudgetError` where `allocate` would for so many prompts."""
        self.strategy.check_feasible(num_prompts, total, *self.bounds)
        if self.mode == "weights":
            check_even(num_prompts, total)
        if self.pilot:
            check_room(num_prompts, total, max(self.bounds[0], self.pilot))

    @np.errstate(under="ignore")  # a gain that rounds to 0 is 0, whatever the caller's settings
    def allocate(
        self,
        prompt_ids: Iterable[PromptId],
        total: int | None = None,
        pass_rates: np.ndarray | None = None,
        *,
        tokens: float | None = None,
    ) -> Allocation:
        """Share out one step's rollouts; with a pilot, those of the first round.

        Args:
            prompt_ids: One id (str or int) a prompt of the batch. Rows with the same id get a budget each
                and share one history.
            total: Rollouts of the step, a whole number; None: with `tokens`.
            pass_rates: (P,) pass rates known from elsewhere, NaN where unknown, to use instead of the
                strategy's own estimates.
            tokens: In the budget unit `tokens`, in place of a total: most that all rollouts are expected to generate.

        Returns:
            Budgets within the bounds that sum to `total` exactly, in the budget unit `tokens` with at most the expected
            tokens of even budgets; or of at most `tokens`, less than one rollout below. An empty batch with total 0 gives an empty
            allocation. In the mode `weights` every budget is total/P. With a pilot, every budget is the pilot's, and
            `allocate_rest` has the others.

        Raises:
            InfeasibleBudgetError: `total` is below P·fewest or above P·most; in the mode `weights`, it is no multiple
                of P; or it does not hold the pilot. `tokens` do not hold the fewest rollouts, or no length is known yet.
            CobaError: The strategy's budgets are not whole numbers within the bounds that sum to the total.
            TypeError: An id is not str or int, the total is not a whole number, or there are `tokens`, too.
            ValueError: `pass_rates` is not one number in [0, 1] (or NaN) a prompt.
        """
        ids = check_prompt_ids(prompt_ids)
        is_known = pass_rates is not None
        pass_rates = check_rates(pass_rates, len(ids)) if is_known else self.strategy.pass_rates(ids)
        each = max(self.bounds[0], self.pilot)
        if tokens is None:
            total = check_total(total)
            self.check_feasible(len(ids), total)
        else:
            total = self._limit.check(ids, pass_rates, total, tokens, each)
        if not self.pilot:
            return self._share_out(ids, total, tokens, each, pass_rates)
        self._first_round = FirstRound(ids, total, tokens, each, pass_rates, is_known)
        return self._first_round.allocation

    @np.errstate(under="ignore")
    def allocate_rest(self, successes: Sequence[float | None] | np.ndarray) -> Allocation:
        """Share out what a pilot left, by the pass rates that its outcomes give.

        Nothing is learnt from them yet: `observe` takes in the rollouts of both rounds together.

        Args:
            successes: (R,) success of each rollout of the pilot, in the order of its `repeat_index`; None or NaN is no
                attempt, or a rollout that did not come back.

        Returns:
            Whole budgets, those of the pilot included, within the bounds and at least the pilot's; their sum is the
            total that `allocate` was given. The pass rates are those after the look, or those given to `allocate`.

        Raises:
            CobaError: No pilot is under way, or the strategy's budgets do not fit.
            ValueError: Not one success a rollout of the pilot, or a graded success outside [0, 1].
        """
        if self._first_round is None:
            raise CobaError(
                "allocate_rest() without a pilot under way: call allocate() first, of an allocator with pilot=1 or more, and "
                "allocate_rest() once after it."
            )
        first = self._first_round
        pass_rates = first.look(self.strategy, self.success(successes))
        whole = self._share_out(first.prompt_ids, first.total, first.tokens, first.each, pass_rates)
        self._first_round = None
        return whole

    def _share_out(
        self, ids: list[PromptId], total: int, tokens: float | None, low: int, pass_rates: np.ndarray
    ) -> Allocation:
        if self.mode == "weights":
            given = even_split(total, len(ids))
        elif self.mode == "both":
            given = self.strategy.spread(pass_rates, total, low, self.bounds[1])
        else:
            given = self._limit.allocate(ids, pass_rates, total, tokens, low, self.bounds[1])
            total = total if tokens is None else int(np.sum(given))
        budgets = check_budgets(given, len(ids), total, (low, self.bounds[1]), type(self.strategy).__name__)
        self._step += 1
        self._allocation_metrics = {
            **self.strategy.metrics(),
            **measure_allocation(budgets, pass_rates, self.strategy.seen(ids), self.bounds),
            **self._limit.measure(ids, pass_rates, budgets),
        }
        return Allocation(ids, budgets, pass_rates)

    @np.errstate(under="ignore")
    def weigh(
        self,
        prompt_ids: Iterable[PromptId],
        rollout_ids: Iterable[PromptId],
        successes: Sequence[float | None] | np.ndarray,
    ) -> np.ndarray:
        """How much the advantages of each prompt of a step count, given what its rollouts scored.

        Call it before `observe`: nothing is learnt yet. The weight of prompt i is B_i·P/Σ B, where B are the budgets that
        the strategy would give if it knew the pass rates that the step's outcomes show, within `WEIGHT_BOUNDS` of the
        mean.

        Args:
            prompt_ids: (P,) the prompts that are trained on.
            rollout_ids: (R,) the prompt of each rollout, in any order.
            successes: (R,) success of each; None or NaN is no attempt.

        Returns:
            (P,) float64 weights, mean 1; 1 each in the mode `rollouts`.

        Raises:
            ValueError, TypeError: As `observe`.

        Example:
            >>> allocator = BudgetAllocator(mode="weights")
            >>> groups = ["easy", "hard"] * 8
            >>> allocator.weigh(["easy", "hard"], groups, [1, 0] * 6 + [0, 0, 1, 1]).round(2).tolist()
            [0.5, 1.5]
        """
        ids, rollout_ids = check_prompt_ids(prompt_ids), check_prompt_ids(rollout_ids)
        outcomes = Outcomes(rollout_ids, self._success_of_each(rollout_ids, successes))
        if self.mode == "rollouts" or not ids:
            return np.ones(len(ids))
        weights = prompt_weights(self.strategy, ids, outcomes.visits, len(rollout_ids) / len(ids))
        self._allocation_metrics |= measure_weights(weights)
        return weights

    def expected_tokens(
        self, prompt_ids: Iterable[PromptId], pass_rates: np.ndarray | None = None
    ) -> np.ndarray:
        """(P,) tokens that a rollout of each prompt is expected to generate; NaN before a length has been observed.

        Args:
            prompt_ids, pass_rates: As for `allocate`.
        """
        ids = check_prompt_ids(prompt_ids)
        p_P = self.strategy.pass_rates(ids) if pass_rates is None else check_rates(pass_rates, len(ids))
        return self._limit.cost(ids, p_P) if self._limit.lengths.started else np.full(len(ids), np.nan)

    def preview(self, prompt_ids: Iterable[PromptId], total: int) -> Allocation:
        """What `allocate` would return, without its traces: no metrics, no step for strategies that count them."""
        before, first_round = self._progress(), self._first_round
        try:
            return self.allocate(prompt_ids, total)
        finally:
            self._restore(before)
            self._first_round = first_round

    def observe(
        self,
        prompt_ids: Iterable[PromptId],
        successes: Sequence[float | None] | np.ndarray,
        in_pilot: Sequence[bool] | np.ndarray | None = None,
        *,
        lengths: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        """Take in what one step's rollouts scored.

        Args:
            prompt_ids: (R,) the prompt of each rollout, in any order. Only rollouts that came back count.
            successes: (R,) success of each rollout. None or NaN is no attempt: neither pass nor failure.
            in_pilot: (R,) whether each rollout was of the pilot; needed with one. How many rollouts a prompt gets
                beyond it depends on what it scored, so the share of all that passed is no unbiased pass rate.
            lengths: (R,) tokens that each generated; needed in the budget unit `tokens`.

        Raises:
            ValueError: Not one of each a rollout, a graded success outside [0, 1] or a length that is none, or `in_pilot`
                or `lengths` are missing.
            TypeError: An id is not str or int.
        """
        ids = check_prompt_ids(prompt_ids)
        success_R = self._success_of_each(ids, successes)
        pilot_R = check_in_pilot(in_pilot, len(ids), self.pilot)
        outcomes = Outcomes(ids, success_R, pilot_R, check_lengths(lengths, len(ids), self.budget_unit))
        self._outcome_metrics = {**outcomes.metrics(), **self._limit.observe(outcomes)}
        if outcomes.visits is not None:
            self.strategy.observe(outcomes.visits)

    def _success_of_each(
        self, ids: list[PromptId], successes: Sequence[float | None] | np.ndarray
    ) -> np.ndarray:
        success_R = self.success(successes)
        if len(ids) != len(success_R):
            raise ValueError(
                f"{len(ids)} prompt ids but {len(success_R)} successes: expected one of each a rollout."
            )
        return success_R

    def success(self, scores: Sequence[float | None] | np.ndarray) -> np.ndarray:
        """(R,) success of each rollout in [0, 1], by the threshold if there is one; NaN is no attempt.

        Args:
            scores: (R,) what the verifier said; None or NaN is no attempt.

        Raises:
            ValueError: Without a threshold, a score outside [0, 1] by more than rounding.

        Example:
            >>> BudgetAllocator(success_threshold=0.5).success([0.9, 0.2, None]).tolist()
            [1.0, 0.0, nan]
            >>> BudgetAllocator().success([1.0000001, -1e-8]).tolist()
            [1.0, 0.0]
        """
        return as_success(scores, self.success_threshold)

    def metrics(self) -> dict[str, float]:
        """Finite numbers for the run's log: the last allocation, and the outcomes of the last `observe`."""
        metrics = self._allocation_metrics | self._outcome_metrics
        return {f"coba/{name}": float(value) for name, value in metrics.items()}
