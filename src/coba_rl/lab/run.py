"""One lab run: GRPO on the embedded task with an allocator, deterministic from its seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coba_rl.allocation import Allocation
from coba_rl.allocation.strategies.coba import BetaStrategy
from coba_rl.errors import OptionError
from coba_rl.evaluate import Transitions, difficulty_transitions
from coba_rl.lab.config import ESTIMATE_EXACT, LabConfig
from coba_rl.lab.grpo import update
from coba_rl.lab.measures import coverage, estimate_errors, mechanism
from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.tasks.base import Problem
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan


@dataclass(frozen=True, eq=False)
class LabResult:
    """What a lab run measured."""

    config: LabConfig
    curve: list[tuple[int, float]]
    """(step, exact held-out accuracy), from step 0 on."""
    steps: list[dict[str, float]]
    """Per step: the allocator's metrics, the error of its pass rates, the gradient norm."""
    before_P: np.ndarray
    """(N,) exact pass rates of the training prompts before training."""
    after_P: np.ndarray
    """(N,) the same after training."""
    seconds: float
    """Processor time of the run."""

    @property
    def final(self) -> float:
        """Held-out accuracy at the end."""
        return self.curve[-1][1]

    @property
    def area(self) -> float:
        """Area under the held-out curve, divided by its length: mean accuracy over training."""
        step, accuracy = (np.array(column, dtype=float) for column in zip(*self.curve, strict=True))
        return float(np.trapezoid(accuracy, step) / (step[-1] - step[0]))

    @property
    def transitions(self) -> Transitions:
        """Difficulty classes of the training prompts before and after, each told from 16 rollouts."""
        rng = np.random.default_rng([self.config.seed, 3])
        before, after = (rng.binomial(16, p) / 16 for p in (self.before_P, self.after_P))
        return difficulty_transitions(before, after)

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON; the configuration is left out."""
        return {
            "final": self.final,
            "area": self.area,
            "curve": self.curve,
            "transitions": self.transitions.counts.tolist(),
            "steps": self.steps,
            "seconds": self.seconds,
        }


class LabRun:
    """Runs a `LabConfig`.

    Args:
        config: What to run.
        on_step: Called with the step and the allocation after each step.

    Attributes:
        policy: The policy as trained so far.
    """

    def __init__(self, config: LabConfig, on_step: Callable[[int, Allocation], None] | None = None) -> None:
        self._config, self._on_step = config, on_step
        self._task = PrefixScan(regime=config.regime, num_train=config.train_prompts)
        self.policy = LabPolicy(policy_path(config.regime), self._task.max_completion_length)
        self._rng = np.random.default_rng(config.seed)
        self._problems = self._task.train_problems()
        self._unsolvable = self._choose_unsolvable()
        self._allocator = config.make_allocator()

    def _choose_unsolvable(self) -> np.ndarray:
        count = round(self._config.unsolvable * len(self._problems))
        chosen = np.zeros(len(self._problems), dtype=bool)
        # Its own generator: which prompts are unsolvable must not change what the others sample.
        chosen[np.random.default_rng([self._config.seed, 1]).permutation(len(chosen))[:count]] = True
        return chosen

    def run(self) -> LabResult:
        """Train and measure."""
        started = time.process_time()
        optimizer = torch.optim.AdamW(
            self.policy.model.parameters(), lr=self._config.learning_rate, weight_decay=0.0
        )
        heldout = self._task.heldout_problems()
        before = self.policy.pass_rates(self._problems)
        curve = [(0, float(self.policy.pass_rates(heldout).mean()))]
        steps = []
        for step, rows in zip(range(1, self._config.steps + 1), self._batches(), strict=False):
            steps.append(self._step(step, rows, optimizer))
            if step % self._config.evaluate_every == 0 or step == self._config.steps:
                curve.append((step, float(self.policy.pass_rates(heldout).mean())))
        after = self.policy.pass_rates(self._problems)
        return LabResult(self._config, curve, steps, before, after, time.process_time() - started)

    def _batches(self) -> Iterator[np.ndarray]:
        size = self._config.prompts_per_step
        if size > len(self._problems):
            raise OptionError(
                f"prompts_per_step={size}: expected at most the {len(self._problems)} training prompts."
            )
        order = np.random.default_rng([self._config.seed, 2])
        while True:
            shuffled = order.permutation(len(self._problems))
            for start in range(0, len(shuffled) - size + 1, size):
                yield shuffled[start : start + size]

    def _step(self, step: int, rows: np.ndarray, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        if self._config.value_threshold:
            rows = self._select(rows)
        problems = [self._problems[row] for row in rows]
        ids = [problem.prompt_id for problem in problems]
        truth = np.where(self._unsolvable[rows], 0.0, self.policy.pass_rates(problems))
        truth = truth + self._config.lucky * (1.0 - truth)
        exact = truth if self._config.options.get("estimator") == ESTIMATE_EXACT else None
        allocation = self._allocator.allocate(ids, self._config.rollouts_per_step, pass_rates=exact)
        measured = self._measure(allocation, truth)
        rollouts = self.policy.sample(problems, allocation.budgets, self._rng)
        success_U = self._judge(problems, rows, rollouts)
        self._observe(ids, rollouts, success_U)
        norm = update(self.policy, optimizer, problems, rollouts, success_U)
        if self._on_step is not None:
            self._on_step(step, allocation)
        return {"step": step, **self._allocator.metrics(), **measured, "grad_norm": norm}

    def _select(self, rows: np.ndarray) -> np.ndarray:
        """The rows worth a rollout: of value above the threshold, or without an estimate."""
        strategy = self._allocator.strategy
        assert isinstance(strategy, BetaStrategy)  # LabConfig.make_allocator sees to it
        p = strategy.pass_rates([self._problems[row].prompt_id for row in rows])
        value = strategy.value(p, self._config.rollouts_per_prompt)
        value = np.where(np.isnan(value), np.inf, value)
        best = value[np.isfinite(value)].max(initial=0.0)
        needed = math.ceil(self._config.rollouts_per_step / self._config.max_budget)
        kept = value >= min(self._config.value_threshold * best, np.sort(value)[-needed])
        return rows[kept]

    def _measure(self, allocation: Allocation, truth_P: np.ndarray) -> dict[str, float]:
        measured = {
            **estimate_errors(allocation, truth_P),
            **mechanism(self._allocator.metrics(), allocation, truth_P),
        }
        if self._config.options.get("estimator") != ESTIMATE_EXACT:
            measured |= coverage(self._allocator.strategy, allocation, truth_P)
        return measured

    def _judge(self, problems: Sequence[Problem], rows: np.ndarray, rollouts: UniqueRollouts) -> np.ndarray:
        right = np.array(
            [
                self._task.score(self.policy.decode(completion), problems[prompt].answer) == 1.0
                for prompt, completion in zip(rollouts.prompt_U.tolist(), rollouts.completions, strict=True)
            ]
        )
        right &= ~self._unsolvable[rows[rollouts.prompt_U]]
        lucky = self._rng.binomial(rollouts.count_U, self._config.lucky) if self._config.lucky else 0
        return np.where(right, rollouts.count_U, lucky)

    def _observe(self, ids: list[str], rollouts: UniqueRollouts, success_U: np.ndarray) -> None:
        successes = np.bincount(rollouts.prompt_U, success_U, minlength=len(ids)).astype(int)
        attempts = np.bincount(rollouts.prompt_U, rollouts.count_U, minlength=len(ids)).astype(int)
        outcomes = np.concatenate([np.arange(n) < s for s, n in zip(successes, attempts, strict=True)])
        self._allocator.observe(np.repeat(np.array(ids, dtype=object), attempts), outcomes.astype(float))
