"""`BudgetAllocator`: what a trainer talks to, once before and once after each step's rollouts."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coba_rl.allocation.allocation import Allocation
from coba_rl.allocation.checks import (
    check_bounds,
    check_budgets,
    check_even,
    check_mode,
    check_rates,
    check_threshold,
)
from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.metrics import measure_allocation, measure_outcomes, measure_weights
from coba_rl.allocation.prompt_table import PromptId, check_prompt_ids
from coba_rl.allocation.saved import check_version, saved_number
from coba_rl.allocation.solvers import even_split
from coba_rl.allocation.strategies import Strategy, make_strategy
from coba_rl.allocation.success import graded, reached
from coba_rl.errors import OptionError, StateError

STATE_VERSION = 1


class BudgetAllocator:
    """Gives each prompt of a batch its number of rollouts, and learns from what the rollouts scored.

    Args:
        strategy: Name of a built-in strategy, `"package.module:Class"`, or a `Strategy` object.
        bounds: (fewest, most) rollouts of a prompt, 1 ≤ fewest ≤ most.
        success_threshold: None: success is graded, any number in [0, 1]. A number: a rollout succeeds when
            its score is at least this, up to the rounding of float32: 0.9 is met by a float32 reward of 0.9.
        mode: `rollouts`: a prompt gets as many rollouts as the strategy gives it. `weights`: every prompt gets the
            same number, and what the strategy gives it says how much its advantages count.
        **options: Options of the strategy, see its fields.

    Raises:
        UnknownStrategyError: No such strategy.
        OptionError: An option that the strategy does not have, or a value it cannot take.

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
        **options: Any,
    ) -> None:
        self.strategy = make_strategy(strategy, **options)
        self.bounds = check_bounds(bounds)
        self.success_threshold = check_threshold(success_threshold)
        self.mode = check_mode(mode)
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
        if not isinstance(num_allocations, (int, np.integer)) or num_allocations < 1:
            raise OptionError(
                f"begin({num_allocations!r}): expected the allocations of the whole training, at least 1."
            )
        self.strategy.begin(int(num_allocations))

    @np.errstate(under="ignore")  # a gain that rounds to 0 is 0, whatever the caller's settings
    def allocate(
        self, prompt_ids: Iterable[PromptId], total: int, pass_rates: np.ndarray | None = None
    ) -> Allocation:
        """Share out one step's rollouts.

        Args:
            prompt_ids: One id (str or int) a prompt of the batch. Rows with the same id get a budget each
                and share one history.
            total: Rollouts of the step, a whole number.
            pass_rates: (P,) pass rates known from elsewhere, NaN where unknown, to use instead of the
                strategy's own estimates.

        Returns:
            Budgets within the bounds that sum to `total` exactly. An empty batch with total 0 gives an empty
            allocation. In the mode `weights` every budget is total/P, and prompt i, which the strategy gave B_i, has
            the weight B_i·P/total.

        Raises:
            InfeasibleBudgetError: `total` is below P·fewest or above P·most; in the mode `weights`, it is no multiple
                of P.
            CobaError: The strategy's budgets are not whole numbers within the bounds that sum to the total.
            TypeError: An id is not str or int, or the total is not a whole number.
            ValueError: `pass_rates` is not one number in [0, 1] (or NaN) a prompt.
        """
        ids = check_prompt_ids(prompt_ids)
        try:
            total = operator.index(total)
        except TypeError:
            raise TypeError(f"total={total!r}: expected a whole number of rollouts (an int).") from None
        low, high = self.bounds
        self.strategy.check_feasible(len(ids), total, low, high)
        if self.mode == "weights":
            check_even(len(ids), total)
        pass_rates = (
            self.strategy.pass_rates(ids) if pass_rates is None else check_rates(pass_rates, len(ids))
        )
        given = self.strategy.allocate(pass_rates, total, low, high)
        budgets = check_budgets(given, len(ids), total, self.bounds, type(self.strategy).__name__)
        weights = None
        if self.mode == "weights":
            budgets, weights = even_split(total, len(ids)), budgets * len(ids) / max(total, 1)
        self._step += 1
        self._allocation_metrics = {
            **self.strategy.metrics(),
            **measure_allocation(budgets, pass_rates, self.strategy.seen(ids), self.bounds),
            **measure_weights(weights),
        }
        return Allocation(ids, budgets, pass_rates, weights)

    def preview(self, prompt_ids: Iterable[PromptId], total: int) -> Allocation:
        """What `allocate` would return, without its traces: no metrics, no step for strategies that count them."""
        before = self._progress()
        try:
            return self.allocate(prompt_ids, total)
        finally:
            self._restore(before)

    def observe(self, prompt_ids: Iterable[PromptId], successes: Sequence[float | None] | np.ndarray) -> None:
        """Take in what one step's rollouts scored.

        Args:
            prompt_ids: (R,) the prompt of each rollout, in any order. Only rollouts that came back count.
            successes: (R,) success of each rollout. None or NaN is no attempt: neither pass nor failure.

        Raises:
            ValueError: Lengths differ, or a graded success lies outside [0, 1].
            TypeError: An id is not str or int.
        """
        ids = check_prompt_ids(prompt_ids)
        success_R = self.success(successes)
        if len(ids) != len(success_R):
            raise ValueError(
                f"{len(ids)} prompt ids but {len(success_R)} successes: expected one of each a rollout."
            )
        # In one order whatever the order of arrival, so that sums round alike.
        distinct = sorted(set(ids), key=lambda prompt_id: (isinstance(prompt_id, str), prompt_id))
        position = {prompt_id: i for i, prompt_id in enumerate(distinct)}
        group_R = np.fromiter((position[i] for i in ids), np.int64, len(ids))
        order = np.lexsort((success_R, group_R))
        group_R, success_R = group_R[order], success_R[order]
        judged_R = ~np.isnan(success_R)
        attempts_P = np.bincount(group_R[judged_R], minlength=len(position)).astype(float)
        successes_P = np.bincount(group_R[judged_R], success_R[judged_R], minlength=len(position))
        tried = attempts_P > 0
        self._outcome_metrics = {"unjudged_rollouts": float((~judged_R).sum())}
        if not tried.any():
            return
        self._outcome_metrics |= measure_outcomes(
            success_R[judged_R], group_R[judged_R], attempts_P, successes_P
        )
        visited = [prompt_id for prompt_id, was_tried in zip(distinct, tried, strict=True) if was_tried]
        self.strategy.observe(Visits(visited, successes_P[tried], attempts_P[tried]))

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
        if not isinstance(scores, np.ndarray) or scores.dtype == object:
            scores = np.array([math.nan if value is None else value for value in scores], dtype=float)
        if scores.ndim != 1:
            raise ValueError(f"successes have the shape {scores.shape}: expected one number a rollout.")
        if self.success_threshold is not None:
            return np.where(np.isnan(scores), np.nan, reached(scores, self.success_threshold))
        try:
            return graded(scores)
        except ValueError as error:
            raise ValueError(
                f"success {error}: expected 0/1 or a graded success. For rewards on another scale set "
                "success_threshold."
            ) from None

    def metrics(self) -> dict[str, float]:
        """Finite numbers for the run's log: the last allocation, and the outcomes of the last `observe`."""
        metrics = self._allocation_metrics | self._outcome_metrics
        return {f"coba/{name}": float(value) for name, value in metrics.items()}

    def state_dict(self, *, arrays: bool = False) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened; JSON-able.

        Args:
            arrays: Leave what is kept of each prompt in NumPy arrays, for writers of binary files. They are
                views, valid until the next `observe`.
        """
        prompts = self.strategy.prompts
        return {**self._progress(), "prompts": prompts.arrays() if arrays else prompts.state_dict()}

    def _progress(self) -> dict[str, Any]:
        """The state but for the prompts: small, whatever the data set."""
        return {
            "version": STATE_VERSION,
            "strategy": self.strategy.name,
            "options": self.strategy.options(),
            "bounds": list(self.bounds),
            "success_threshold": self.success_threshold,
            "mode": self.mode,
            "step": self._step,
            "strategy_state": self.strategy.state_dict(),
            "allocation_metrics": dict(self._allocation_metrics),
            "outcome_metrics": dict(self._outcome_metrics),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the allocator then continues bit for bit.

        Changed options, bounds and mode are used from now on, with a warning; another strategy is refused. When
        this raises, the allocator is as it was. Arrays in the state become the allocator's own.

        Raises:
            StateError: A damaged state, one of a newer version, or one of another strategy.
        """
        before = self.strategy.state_dict()
        try:
            self._check_state(state)
            prompts = self.strategy.prompts.restored(state["prompts"])
            self._restore(state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.strategy.load_state_dict(before)
            if isinstance(error, StateError):
                raise
            raise StateError(
                f"The saved allocator state is damaged ({type(error).__name__}: {error}). Use another checkpoint."
            ) from error
        self.strategy.prompts = prompts

    def _restore(self, progress: dict[str, Any]) -> None:
        self.strategy.load_state_dict(progress["strategy_state"])
        step = int(saved_number(progress, "step", low=0))
        allocation_metrics, outcome_metrics = (
            {name: saved_number(progress[kind], name) for name in progress[kind]}
            for kind in ("allocation_metrics", "outcome_metrics")
        )
        self._step, self._allocation_metrics, self._outcome_metrics = (
            step,
            allocation_metrics,
            outcome_metrics,
        )

    def _check_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or "version" not in state:
            raise StateError(f"Not an allocator state: {type(state).__name__} without a version.")
        check_version("The allocator state", state["version"], STATE_VERSION)
        if state.get("strategy") != self.strategy.name:
            raise StateError(
                f"The state was saved by strategy {state.get('strategy')!r}, this run uses "
                f"{self.strategy.name!r}. Resume with the saved strategy or start a new run."
            )
        own = {"bounds": list(self.bounds), "success_threshold": self.success_threshold, "mode": self.mode}
        now = {**self.strategy.options(), **own}
        then = {**(state.get("options") or {}), **{name: state.get(name) for name in own}}
        changed = sorted(name for name in now if then.get(name) != now[name])
        if changed:
            listed = ", ".join(f"{name}: {then.get(name)!r} → {now[name]!r}" for name in changed)
            warnings.warn(f"Resuming with changed allocation options ({listed}).", stacklevel=3)
