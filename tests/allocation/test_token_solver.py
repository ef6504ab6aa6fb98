"""Budgets under a limit of tokens, against the linear programme of fractional rollouts, and their promises."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from coba_rl import InfeasibleBudgetError
from coba_rl.allocation.solvers import fast
from coba_rl.allocation.token_solver import (
    _Limited,
    affords,
    cheapest_even,
    most_even,
    spend_tokens,
    within_tokens,
)
from coba_rl.allocation.value import Gains, KnapsackGains, VarianceGains, coba_gains

# Costs that tie, that lie far apart, and that hardly differ.
COSTS = st.sampled_from([1.0, 2.0, 3.0, 3.0 + 1e-9, 500.0, 1e-3]) | st.floats(0.1, 10.0)
RATES = st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.75, 1e-9, 0.999]) | st.floats(0.0, 1.0)
TAUS = st.sampled_from([0.02, 0.4, 4.0, 1e3])
ROUNDING = 1e-9


class Problem:
    """Prompts whose rollouts have gains and costs, and a total that fits the bounds."""

    def __init__(self, gains: Gains, cost_P: np.ndarray, total: int, low: int, high: int) -> None:
        self.gains, self.cost_P, self.total, self.low, self.high = gains, cost_P, total, low, high

    @property
    def even_tokens(self) -> float:
        return self.total / len(self.cost_P) * float(self.cost_P.sum())

    @property
    def fewest_tokens(self) -> float:
        """Of the total, the cheapest filled up first."""
        extra = self.total - self.gains.size * self.low
        room = self.high - self.low
        cost = float(self.low * self.cost_P.sum())
        for one in np.sort(self.cost_P):
            cost += min(extra, room) * float(one)
            extra -= min(extra, room)
        return cost

    def gain_PB(self) -> np.ndarray:
        """(P, high − low) gain of each rollout, the largest 1."""
        budget_PB = np.broadcast_to(np.arange(self.low, self.high), (self.gains.size, self.high - self.low))
        log_gain_PB = self.gains.log_gain(budget_PB)
        return np.exp(log_gain_PB - max(float(log_gain_PB.max(initial=-np.inf)), -1e300))

    def value(self, budgets: np.ndarray) -> float:
        return float(sum(row[: b - self.low].sum() for row, b in zip(self.gain_PB(), budgets, strict=True)))

    def best_of_fractions(self, tokens: float, *, has_total: bool) -> float:
        """Optimum of the linear programme, by HiGHS."""
        gain_PB = self.gain_PB()
        cost_PB = np.broadcast_to(self.cost_P[:, None], gain_PB.shape)
        scale = float(self.cost_P.max())
        equal = {
            "A_eq": np.ones((1, gain_PB.size)),
            "b_eq": [self.total - self.gains.size * self.low],
        }
        found = linprog(
            -gain_PB.ravel(),
            A_ub=cost_PB.ravel()[None] / scale,
            b_ub=[(tokens - self.low * self.cost_P.sum()) / scale + 1e-12],
            bounds=(0.0, 1.0),
            method="highs",
            **(equal if has_total else {}),
        )
        assert found.success, found.message
        return -float(found.fun)

    def check(self, budgets: np.ndarray, tokens: float) -> None:
        assert budgets.dtype == np.int64
        assert budgets.min() >= self.low
        assert budgets.max() <= self.high
        assert (self.cost_P * budgets).sum() <= tokens * (1.0 + ROUNDING)


@st.composite
def problems(draw: st.DrawFn, max_prompts: int = 8, max_width: int = 12) -> Problem:
    size = draw(st.integers(1, max_prompts))
    p_P = np.array(draw(st.lists(RATES, min_size=size, max_size=size)))
    cost_P = np.array(draw(st.lists(COSTS, min_size=size, max_size=size)))
    kind = draw(st.sampled_from(["coba", "knapsack", "variance"]))
    gains: Gains = KnapsackGains(p_P) if kind == "knapsack" else VarianceGains(p_P)
    if kind == "coba":
        gains = coba_gains(p_P, draw(st.floats(1.0, 10.0)), draw(st.floats(1.0, 10.0)), draw(TAUS))
    low = draw(st.integers(1, 4))
    high = low + draw(st.integers(1, max_width))
    return Problem(gains, cost_P, draw(st.integers(size * low, size * high)), low, high)


def solved(problem: Problem, tokens: float) -> np.ndarray:
    budgets = within_tokens(problem.gains, problem.cost_P, problem.total, tokens, problem.low, problem.high)
    problem.check(budgets, tokens)
    assert budgets.sum() == problem.total
    return budgets


@given(problems(), st.floats(0.0, 1.0))
def test_a_total_within_tokens_is_a_rollout_from_the_best_of_fractions(
    problem: Problem, between: float
) -> None:
    """From the fewest tokens that the total can take to those of even budgets, the limit that is used."""
    fewest = problem.fewest_tokens * (1.0 + 1e-12)
    for tokens in (problem.even_tokens, fewest + between * max(problem.even_tokens - fewest, 0.0)):
        budgets = solved(problem, max(tokens, fewest))
        best = problem.best_of_fractions(max(tokens, fewest), has_total=True)
        short = best - problem.value(budgets)
        assert short <= problem.gain_PB().max() + 1e-5
        assert short >= -1e-5 * max(best, 1.0)


@given(problems())
def test_the_multipliers_prove_the_best_of_fractions(problem: Problem) -> None:
    """λ·rollouts + μ·tokens + Σ max(gain − λ − μ·cost, 0) is an upper bound of it for any multipliers; ours is tight."""
    tokens, width = problem.even_tokens, float(np.abs(problem.cost_P - problem.cost_P.mean()).max())
    limited = _Limited(problem.gains, problem.cost_P, problem.total, tokens, problem.low, problem.high)
    dear_P = fast(problem.gains, problem.total, problem.low, problem.high)
    if affords(tokens, problem.cost_P, dear_P):
        return
    _, _, angle = limited.at_limit(limited.cheapest(), dear_P)
    gain_PB = problem.gain_PB()
    price_P = np.cos(angle) + np.sin(angle) * (problem.cost_P - problem.cost_P.mean()) / width
    rollouts = problem.total - problem.low * problem.gains.size
    bounds = []
    for size in {0.0, *(gain_PB[price_P > 0] / price_P[price_P > 0, None]).ravel().tolist()}:
        mu = size * np.sin(angle) / width
        lam = size * np.cos(angle) - mu * float(problem.cost_P.mean())
        spare = tokens - problem.low * float(problem.cost_P.sum())
        above = np.maximum(gain_PB - (lam + mu * problem.cost_P)[:, None], 0.0)
        bounds.append(lam * rollouts + mu * spare + float(above.sum()))
    best = problem.best_of_fractions(tokens, has_total=True)
    assert min(bounds) == pytest.approx(best, rel=1e-4, abs=1e-4 * float(gain_PB.max()))


@given(problems(), st.floats(0.0, 1.0))
def test_tokens_without_a_total_are_a_rollout_from_the_best_of_fractions(
    problem: Problem, between: float
) -> None:
    fewest, most = (bound * float(problem.cost_P.sum()) for bound in (problem.low, problem.high))
    tokens = fewest + between * (most - fewest)
    budgets = spend_tokens(problem.gains, problem.cost_P, tokens, problem.low, problem.high)
    problem.check(budgets, tokens)
    open_P = budgets < problem.high
    if open_P.any():  # as near to the limit as the next rollout allows
        assert tokens - (problem.cost_P * budgets).sum() < problem.cost_P[open_P].max() * (1.0 + ROUNDING)
    short = problem.best_of_fractions(tokens, has_total=False) - problem.value(budgets)
    assert -1e-5 * max(problem.gain_PB().sum(), 1.0) <= short <= problem.gain_PB().max() + 1e-5


@given(problems(max_prompts=4, max_width=4), st.floats(0.0, 1.0))
def test_against_every_budget_there_is(problem: Problem, between: float) -> None:
    """Feasible wherever any budgets are, and none of them is a rollout better."""
    every = [
        np.array(budgets)
        for budgets in itertools.product(range(problem.low, problem.high + 1), repeat=problem.gains.size)
        if sum(budgets) == problem.total
    ]
    cost = np.array([(problem.cost_P * budgets).sum() for budgets in every])
    tokens = float(cost.min() + between * (cost.max() - cost.min()))
    budgets = solved(problem, tokens)
    best = max(problem.value(other) for other, c in zip(every, cost, strict=True) if c <= tokens)
    assert problem.value(budgets) >= best - problem.gain_PB().max() - 1e-9
    if cost.min() > 1e-9:
        with pytest.raises(InfeasibleBudgetError, match="Raise the tokens"):
            solved(problem, 0.99 * float(cost.min()))


@given(problems())
def test_a_limit_that_does_not_bind_changes_nothing(problem: Problem) -> None:
    free = fast(problem.gains, problem.total, problem.low, problem.high)
    tokens = float((problem.cost_P * free).sum())
    assert solved(problem, tokens).tolist() == free.tolist()
    assert solved(problem, 2.0 * tokens).tolist() == free.tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [lambda p: coba_gains(p, 3.0, 8.0, 0.4), KnapsackGains, VarianceGains])
def test_the_order_of_the_batch_does_not_matter(seed: int, make: type) -> None:
    rng = np.random.default_rng(seed)
    p_P, cost_P = rng.beta(0.5, 0.9, size=64), rng.uniform(100.0, 900.0, size=64)
    order = rng.permutation(64)
    tokens = 0.97 * 16 * float(cost_P.sum())
    one = within_tokens(make(p_P), cost_P, 64 * 16, tokens, 2, 64)
    other = within_tokens(make(p_P[order]), cost_P[order], 64 * 16, tokens, 2, 64)
    assert other.tolist() == one[order].tolist()
    one, other = (
        spend_tokens(make(p), c, tokens, 2, 64) for p, c in ((p_P, cost_P), (p_P[order], cost_P[order]))
    )
    assert other.tolist() == one[order].tolist()


@given(st.integers(0, 10**6))
def test_equal_prompts_differ_by_one_rollout_at_most(seed: int) -> None:
    random = Random(seed)
    kinds = [(random.random(), random.choice([100.0, 250.0, 700.0])) for _ in range(random.randint(2, 4))]
    kind_P = np.array([random.randrange(len(kinds)) for _ in range(random.randint(8, 40))])
    p_P, cost_P = np.array(kinds)[kind_P].T
    problem = Problem(coba_gains(p_P, 3.0, 8.0, 0.4), cost_P, 16 * len(kind_P), 2, 64)
    budgets = solved(problem, problem.even_tokens)
    for kind in set(kind_P.tolist()):
        assert np.ptp(budgets[kind_P == kind]) <= 1


def test_what_is_worth_nothing_is_bought_last_and_then_where_it_is_cheap() -> None:
    gains, cost_P = KnapsackGains(np.array([0.5, 1.0, 0.0])), np.array([40.0, 30.0, 20.0])
    assert within_tokens(gains, cost_P, 20, 600.0, 2, 12).tolist() == [9, 2, 9]
    assert spend_tokens(gains, cost_P, 620.0, 2, 12).tolist() == [12, 2, 4]


def test_gains_too_small_for_a_float_are_compared_by_their_logarithms() -> None:
    """Where the 20th rollout of either prompt is worth e^−5000 of its first."""
    gains, cost_P = coba_gains(np.array([0.5, 0.4, 0.5]), 5.5, 5.5, 1e-3), np.array([3.0, 2.0, 1.0])
    budgets = within_tokens(gains, cost_P, 60, 115.0, 2, 40)
    problem = Problem(gains, cost_P, 60, 2, 40)
    problem.check(budgets, 115.0)
    assert budgets.sum() == 60
    assert fast(gains, 60, 2, 40).tolist() == [20, 20, 20]
    assert budgets[0] < 20 < budgets[2]


def test_even_budgets() -> None:
    cost_P = np.array([3.0, 1.0, 2.0])
    assert cheapest_even(cost_P, 7).tolist() == [2, 3, 2]
    assert cheapest_even(np.zeros(0), 0).tolist() == []
    for mean in (3, 7, 13):
        cost_P = np.random.default_rng(mean).uniform(size=50)
        assert most_even(cost_P, mean * float(cost_P.sum()), 1, 99).tolist() == [mean] * 50
    assert most_even(np.array([1.0, 1.0]), 7.5, 1, 9).tolist() == [4, 3]


@pytest.mark.parametrize("tokens", [9.0, -1.0, float("nan"), float("inf")])
def test_tokens_that_are_too_few_or_none(tokens: float) -> None:
    gains = VarianceGains(np.array([0.5, 0.5]))
    with pytest.raises(
        InfeasibleBudgetError, match=rf"tokens={tokens!r} for 2 prompts: expected.*at least 10"
    ):
        spend_tokens(gains, np.array([2.0, 3.0]), tokens, 2, 9)


class Counted(Gains):
    """The gains of another batch; counts how many it is asked for."""

    def __init__(self, of: Gains) -> None:
        self.of, self.asked = of, 0

    @property
    def size(self) -> int:
        return self.of.size

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        self.asked += budget.size
        return self.of.log_gain(budget)

    def count_above(self, threshold: float | np.ndarray, low: int, high: int) -> np.ndarray:
        self.asked += self.size
        return self.of.count_above(threshold, low, high)


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_the_work_is_that_of_some_dozens_of_solutions_without_a_limit(alpha: float) -> None:
    rng = np.random.default_rng(0)
    p_P = rng.beta(0.5, 0.9, size=512)
    cost_P = 200.0 + 800.0 * (1.0 - p_P) * rng.uniform(0.5, 1.5, size=512)
    free, limited = (
        Counted(coba_gains(p_P, alpha, 11.0 - alpha, 0.4)),
        Counted(coba_gains(p_P, alpha, 11.0 - alpha, 0.4)),
    )
    fast(free, 512 * 16, 2, 128)
    within_tokens(limited, cost_P, 512 * 16, 16 * float(cost_P.sum()), 2, 128)
    assert limited.asked > 2 * free.asked, "the limit does not bind: the test shows nothing"
    assert limited.asked <= 80 * free.asked
