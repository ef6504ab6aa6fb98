"""One lab run: GRPO on an embedded task with an allocator, deterministic from its seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from coba_rl.allocation import Allocation
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.errors import OptionError
from coba_rl.lab.config import LabConfig
from coba_rl.lab.grpo import surrogate, update
from coba_rl.lab.measures import coverage, estimate_errors, mechanism
from coba_rl.lab.policy import LabPolicy, ReadProblems, UniqueRollouts
from coba_rl.lab.result import LabResult
from coba_rl.lab.rounds import joined
from coba_rl.tasks.base import Problem
from coba_rl.tasks.policy import policy_path

STREAMS = ("order", "sampling", "noise", "fates", "difficulty")
"""What is random in a run: prompt order, rollouts, lucky verdicts, which prompts are unsolvable or solved, and the 16
rollouts that tell a prompt's difficulty class."""


def random_streams(seed: int) -> dict[str, np.random.Generator]:
    """An independent generator for each of `STREAMS`, so that one never moves another.

    They are spawned, so none coincides with a generator made of the seed itself, as those of the tasks are.
    """
    spawned = np.random.SeedSequence(seed).spawn(len(STREAMS))
    return {name: np.random.default_rng(sequence) for name, sequence in zip(STREAMS, spawned, strict=True)}


class LabRun:
    """Runs a `LabConfig`.

    Args:
        config: What to run.
        on_step: Called with the step and the allocation after each step.
        tokens: Ends the run after the first step by which so many tokens are generated, in place of all that the
            configuration says of its end.

    Attributes:
        policy: The policy as trained so far.
    """

    def __init__(
        self,
        config: LabConfig,
        on_step: Callable[[int, Allocation], None] | None = None,
        tokens: int | None = None,
    ) -> None:
        self._config, self._on_step, self._tokens = config, on_step, tokens
        self._task = config.make_task()
        self.policy = LabPolicy(policy_path(config.regime, config.task), self._task.max_completion_length)
        self._streams = random_streams(config.seed)
        self._problems = self._task.train_problems()
        self._unsolvable, self._solved = self._choose_fates()
        self._allocator = config.make_allocator()

    def _choose_fates(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) which prompts are always judged wrong, and which always right."""
        size = len(self._problems)
        # One ends where the other begins: no prompt is both, also where the shares leave no other.
        middle = round(self._config.unsolvable * size)
        end = round((self._config.unsolvable + self._config.solved) * size)
        rank = self._streams["fates"].permutation(size)
        return rank < middle, (rank >= middle) & (rank < end)

    def run(self) -> LabResult:
        """Train and measure."""
        started = time.process_time()
        optimizer = torch.optim.AdamW(
            self.policy.model.parameters(), lr=self._config.learning_rate, weight_decay=0.0
        )
        heldout = self._task.heldout_problems()
        before = self._successes_of_16()
        curve = [(0, float(self.policy.pass_rates(heldout).mean()))]
        steps: list[dict[str, float]] = []
        for step, rows in enumerate(self._batches(), start=1):
            steps.append(self._step(step, rows, optimizer))
            is_last = self._is_last(steps)
            if step % self._config.evaluate_every == 0 or is_last:
                curve.append((step, float(self.policy.pass_rates(heldout).mean())))
            if is_last:
                break
        seconds = time.process_time() - started
        return LabResult(self._config, curve, before, self._successes_of_16(), steps, seconds)

    def _is_last(self, steps: list[dict[str, float]]) -> bool:
        tokens = self._tokens or self._config.tokens
        if tokens is not None and sum(step["tokens"] for step in steps) >= tokens:
            return True
        return self._tokens is None and len(steps) == self._config.steps

    def _successes_of_16(self) -> list[int]:
        return self._streams["difficulty"].binomial(16, self.policy.pass_rates(self._problems)).tolist()

    def _batches(self) -> Iterator[np.ndarray]:
        size = self._config.prompts_per_step
        if size > len(self._problems):
            raise OptionError(
                f"prompts_per_step={size}: expected at most the {len(self._problems)} training prompts."
            )
        while True:
            shuffled = self._streams["order"].permutation(len(self._problems))
            for start in range(0, len(shuffled) - size + 1, size):
                yield shuffled[start : start + size]

    def _step(self, step: int, rows: np.ndarray, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        if self._config.min_value_share:
            rows = self._select(rows)
        problems = [self._problems[row] for row in rows]
        ids = [problem.prompt_id for problem in problems]
        read = self.policy.read(problems)
        truth = read.graded_scores() if self._task.graded else read.pass_rates()
        truth = np.where(self._unsolvable[rows], 0.0, truth)
        truth = np.where(self._solved[rows], 1.0, truth)
        truth = truth + self._config.lucky * (1.0 - truth)
        exact = truth if self._config.exact_pass_rates else None
        allocation = self._allocate(ids, exact)
        rollouts, score_U = self._roll_out(read, problems, rows, allocation.budgets)
        pilot_U = rollouts.count_U
        if allocation.is_pilot:
            whole = self._allocator.allocate_rest(np.repeat(score_U, rollouts.count_U))
            if whole.total > allocation.total:
                rest = self._roll_out(read, problems, rows, whole.budgets - allocation.budgets)
                rollouts, score_U, pilot_U = joined(rollouts, score_U, *rest)
            allocation = whole
        measured = self._measure(allocation, truth)
        weight_P = self._weights(allocation, rollouts, score_U)
        self._observe(ids, rollouts, score_U, pilot_U)
        scale = self._config.scale_rewards
        objective = surrogate(self.policy, problems, rollouts, score_U, weight_P, scale_rewards=scale)
        norm = update(self.policy, optimizer, objective, self._config.updates_per_batch)
        if self._on_step is not None:
            self._on_step(step, allocation)
        counted = {"step": step, "tokens": rollouts.num_tokens, "rollouts": allocation.total}
        return {**counted, **self._allocator.metrics(), **measured, "grad_norm": norm}

    def _allocate(self, ids: list[str], exact: np.ndarray | None) -> Allocation:
        """Of the step's rollouts; or, where tokens are limited, of as many as these would generate in even budgets."""
        total = self._config.rollouts_per_step
        if self._config.budget_unit == "tokens":
            cost_P = self._allocator.expected_tokens(ids, exact)
            if not np.isnan(cost_P).any():
                tokens = total / len(ids) * float(cost_P.sum())
                return self._allocator.allocate(ids, pass_rates=exact, tokens=tokens)
        return self._allocator.allocate(ids, total, pass_rates=exact)

    def _weights(
        self, allocation: Allocation, rollouts: UniqueRollouts, score_U: np.ndarray
    ) -> np.ndarray | None:
        """(P,) factors of the prompts' advantages; None: 1 each."""
        if self._config.per_prompt_weighting:
            return allocation.budgets.mean() / allocation.budgets
        if self._config.mode == "rollouts":
            return None
        return self._allocator.weigh(
            allocation.prompt_ids, *_by_rollout(allocation.prompt_ids, rollouts, score_U)
        )

    def _select(self, rows: np.ndarray) -> np.ndarray:
        """The rows worth a rollout: of at least that share of the best value, or without an estimate."""
        strategy = self._allocator.strategy
        p = strategy.pass_rates([self._problems[row].prompt_id for row in rows])
        value = strategy.value(p, self._config.rollouts_per_prompt)
        assert value is not None  # LabConfig.make_allocator sees to it
        value = np.where(np.isnan(value), np.inf, value)
        best = value[np.isfinite(value)].max(initial=0.0)
        needed = math.ceil(self._config.rollouts_per_step / self._config.max_budget)
        kept = value >= min(self._config.min_value_share * best, np.sort(value)[-needed])
        return rows[kept]

    def _measure(self, allocation: Allocation, truth_P: np.ndarray) -> dict[str, float]:
        strategy = self._allocator.strategy
        measured = estimate_errors(allocation, truth_P) | mechanism(strategy, allocation, truth_P)
        return (
            measured if self._config.exact_pass_rates else measured | coverage(strategy, allocation, truth_P)
        )

    def _roll_out(
        self, read: ReadProblems, problems: Sequence[Problem], rows: np.ndarray, budget_P: np.ndarray
    ) -> tuple[UniqueRollouts, np.ndarray]:
        """Rollouts and (U,) their scores."""
        rollouts = read.sample(budget_P, self._streams["sampling"])
        return self._judge(problems, rows, rollouts)

    def _judge(
        self, problems: Sequence[Problem], rows: np.ndarray, rollouts: UniqueRollouts
    ) -> tuple[UniqueRollouts, np.ndarray]:
        """The rollouts, lucky ones set apart, and (U,) their scores."""
        texts = map(self.policy.decode, rollouts.completions)
        answers = [problems[prompt].answer for prompt in rollouts.prompt_U.tolist()]
        score_U = np.array(list(map(self._task.score, texts, answers)))
        rows_U = rows[rollouts.prompt_U]
        score_U[self._solved[rows_U]] = 1.0
        score_U[self._unsolvable[rows_U]] = 0.0
        lucky = self._streams["noise"].binomial(rollouts.count_U, self._config.lucky)
        rollouts, before, is_lucky = rollouts.split(np.where(score_U == 1.0, 0, lucky))
        return rollouts, np.where(is_lucky, 1.0, score_U[before])

    def _observe(
        self, ids: list[str], rollouts: UniqueRollouts, score_U: np.ndarray, pilot_U: np.ndarray
    ) -> None:
        in_pilot = np.concatenate([np.arange(n) < k for n, k in zip(rollouts.count_U, pilot_U, strict=True)])
        length_R = np.repeat(np.array([*map(len, rollouts.completions)]), rollouts.count_U)
        self._allocator.observe(*_by_rollout(ids, rollouts, score_U), in_pilot, lengths=length_R)


def _by_rollout(
    ids: Sequence[PromptId], rollouts: UniqueRollouts, score_U: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(R,) prompt and (R,) score of each rollout."""
    id_U = np.array(ids, dtype=object)[rollouts.prompt_U]
    return np.repeat(id_U, rollouts.count_U), np.repeat(score_U, rollouts.count_U).astype(float)
