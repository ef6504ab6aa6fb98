"""The budget solvers against each other, against brute force, and their promises about ties and order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl import InfeasibleBudgetError
from coba_rl.allocation.solvers import SOLVERS, dynamic_programming, even_split, fast, heap
from coba_rl.allocation.value import Gains, KnapsackGains, VarianceGains, coba_gains


@dataclass(frozen=True)
class Stairs(Gains):
    """Log gains that fall in steps, level for a while and in the end worth nothing; default `count_above`."""

    top_P: np.ndarray
    step_P: np.ndarray
    last_P: np.ndarray

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self.top_P)

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        top, step, last = (
            c if budget.ndim == 1 else c[:, None] for c in (self.top_P, self.step_P, self.last_P)
        )
        return np.where(budget < last, top - np.floor(budget / step), -np.inf)


# Rates that repeat, that tie across p and 1 − p, and that sit at or next to the ends.
RATES = st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.75, 1e-12, 1.0 - 1e-12, 1e-6, 0.05, 0.99]) | st.floats(
    1e-9, 1.0
)
# Beside them rates so extreme that a float tells few gains apart, or none.
EXTREMES = [5e-324, 1e-310, 1e-160, 1e-17, 1e-15, 1.0 - 1e-16]
EXTREME_RATES = st.sampled_from(EXTREMES) | RATES
SHAPES = st.sampled_from([1.0, 1.06, 5.5, 10.0, 200.0]) | st.floats(1.0, 50.0)
TAUS = st.sampled_from([1e-9, 0.1, 3.0, 12.0, 1e9]) | st.floats(1e-3, 1e3)


@st.composite
def gains(draw: st.DrawFn, max_prompts: int = 12, rates: st.SearchStrategy[float] = RATES) -> Gains:
    num_prompts = draw(st.integers(1, max_prompts))
    kind = draw(st.sampled_from(["coba", "knapsack", "variance", "stairs"]))
    if kind == "stairs":
        columns = [
            draw(st.lists(st.integers(least, most), min_size=num_prompts, max_size=num_prompts))
            for least, most in ((-3, 3), (1, 4), (1, 30))
        ]
        return Stairs(*(np.array(column, dtype=float) for column in columns))
    p_P = np.array(draw(st.lists(rates, min_size=num_prompts, max_size=num_prompts)))
    if kind == "coba":
        return coba_gains(p_P, draw(SHAPES), draw(SHAPES), draw(TAUS))
    return KnapsackGains(p_P) if kind == "knapsack" else VarianceGains(p_P)


@st.composite
def problems(draw: st.DrawFn, max_prompts: int = 12, max_width: int = 40) -> tuple[Gains, int, int, int]:
    """(gains, total, low, high) with a total that fits."""
    of = draw(gains(max_prompts, EXTREME_RATES))
    low = draw(st.integers(1, 5))
    high = low + draw(st.integers(0, max_width))
    return of, draw(st.integers(of.size * low, of.size * high)), low, high


def value(of: Gains, budgets: np.ndarray, low: int) -> float:
    """Sum of the gains bought above the minimum, relative to the largest."""
    most = budgets.max(initial=low + 1)
    table = of.log_gain(np.broadcast_to(np.arange(low, most), (of.size, most - low)))
    gain = np.exp(table - max(table.max(), -1e300))
    return float(sum(row[: budget - low].sum() for row, budget in zip(gain, budgets, strict=True)))


@settings(max_examples=4 * settings().max_examples)
@given(problems())
def test_fast_equals_heap_ties_included(problem: tuple[Gains, int, int, int]) -> None:
    assert fast(*problem).tolist() == heap(*problem).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_fast_equals_heap_on_whole_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p_P = np.round(rng.beta(0.4, 0.8, size=300), (1, 3, 15)[seed % 3])  # from many ties to hardly any
    for of in (
        coba_gains(p_P, 5.5, 5.5, 4.0),
        coba_gains(p_P, 1.2, 9.8, 0.1),
        KnapsackGains(p_P),
        VarianceGains(p_P),
    ):
        assert fast(of, 300 * 16 + seed, 2, 128).tolist() == heap(of, 300 * 16 + seed, 2, 128).tolist()


@given(gains(), st.floats(-200.0, 2.0), st.integers(1, 5), st.integers(0, 200))
def test_inverses_are_off_by_one_rollout_at_most(of: Gains, threshold: float, low: int, width: int) -> None:
    count = of.count_above(threshold, low, low + width)
    assert count.dtype == np.int64
    assert np.abs(count - Gains.count_above(of, threshold, low, low + width)).max() <= 1


class Wrapped(Gains):
    """The gains of another batch, by a `count_above` that is off; counts the work it is asked for."""

    def __init__(self, of: Gains, off_P: np.ndarray) -> None:
        self.of, self.off_P = of, off_P
        self.num_searches = self.num_gains = self.most_at_once = 0

    @property
    def size(self) -> int:
        return self.of.size

    def log_gain(self, budget: np.ndarray) -> np.ndarray:
        self.num_gains += budget.size
        self.most_at_once = max(self.most_at_once, budget.size)
        return self.of.log_gain(budget)

    def count_above(self, threshold: float, low: int, high: int) -> np.ndarray:
        self.num_searches += 1
        return np.clip(self.of.count_above(threshold, low, high) + self.off_P, low, high)


@given(problems(), st.data())
def test_fast_proves_its_result_instead_of_trusting_count_above(
    problem: tuple[Gains, int, int, int], data: st.DataObject
) -> None:
    of, total, low, high = problem
    off_P = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=of.size, max_size=of.size)))
    assert fast(Wrapped(of, off_P), total, low, high).tolist() == heap(of, total, low, high).tolist()


@pytest.mark.parametrize("alpha", [1.1, 3.0, 9.5])
@pytest.mark.parametrize("mean_budget", [4, 16, 60])
def test_fast_looks_at_few_rollouts(alpha: float, mean_budget: int) -> None:
    p_P = np.random.default_rng(0).beta(0.5, 0.9, size=2000)
    of = Wrapped(coba_gains(p_P, alpha, 11.0 - alpha, 4.0), np.zeros(2000, dtype=np.int64))
    budgets = fast(of, 2000 * mean_budget, 2, 128)
    assert budgets.tolist() == heap(of.of, 2000 * mean_budget, 2, 128).tolist()
    assert of.num_searches <= 20
    assert of.num_gains <= 10 * 2000  # of 126 a prompt


@pytest.mark.parametrize("high", [128, 100_000, 10**12])
@pytest.mark.parametrize("rate", [*EXTREMES, 1e-12, 1e-9, 0.0, 0.3, None])
@pytest.mark.parametrize("kind", ["coba", "coba-late", "knapsack", "variance"])
def test_no_gains_and_no_total_make_fast_slow_or_large(kind: str, rate: float | None, high: int) -> None:
    p_P = np.full(512, rate) if rate is not None else np.resize([*EXTREMES, 1e-12, 0.0, 1.0, 0.3], 512)
    gains = {
        "coba": coba_gains(p_P, 5.5, 5.5, 0.4),
        "coba-late": coba_gains(p_P, 1.0, 9.0, 1e6),
        "knapsack": KnapsackGains(p_P),
        "variance": VarianceGains(p_P),
    }[kind]
    for share in (0.0, 0.001, 0.37, 0.999):
        of = Wrapped(gains, np.zeros(512, dtype=np.int64))
        total = 1024 + int(share * 512 * (high - 2)) + 7
        budgets = fast(of, total, 2, high)
        assert budgets.sum() == total
        assert ((budgets >= 2) & (budgets <= high)).all()
        if rate is not None:
            assert (np.diff(budgets) <= 0).all()  # equal prompts: the earlier are raised first
            assert np.ptp(budgets) <= 1
        assert of.most_at_once <= 4 * 512
        assert of.num_gains <= 64 * (high.bit_length() + 2) * 512


@given(problems(max_prompts=5, max_width=10), st.sampled_from(["fast", "heap"]))
def test_greedy_reaches_the_value_of_dynamic_programming(
    problem: tuple[Gains, int, int, int], solver: str
) -> None:
    of, _, low, _ = problem
    best = value(of, SOLVERS["dynamic-programming"](*problem), low)
    assert value(of, SOLVERS[solver](*problem), low) == pytest.approx(best, rel=1e-9, abs=1e-12)


@given(st.data())
def test_dynamic_programming_finds_the_brute_force_optimum(data: st.DataObject) -> None:
    num_prompts, width, low = (
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(0, 3)),
    )
    values = st.lists(st.integers(-9, 9), min_size=width, max_size=width)  # integers: sums are exact
    value_PB = np.array(data.draw(st.lists(values, min_size=num_prompts, max_size=num_prompts)), dtype=float)
    total = data.draw(st.integers(num_prompts * low, num_prompts * (low + width - 1)))
    budgets = dynamic_programming(value_PB, total, low)
    feasible = [
        extra
        for extra in itertools.product(range(width), repeat=num_prompts)
        if sum(extra) == total - num_prompts * low
    ]

    def worth(extra: tuple[int, ...]) -> tuple[float, int]:
        return sum(value_PB[i, n] for i, n in enumerate(extra)), -sum(n * n for n in extra)

    found = tuple((budgets - low).tolist())
    assert found in feasible
    assert worth(found) == max(worth(extra) for extra in feasible)


@given(problems(max_prompts=6, max_width=12), st.sampled_from(sorted(SOLVERS)))
def test_every_solver_spends_the_total_within_the_bounds(
    problem: tuple[Gains, int, int, int], solver: str
) -> None:
    of, total, low, high = problem
    budgets = SOLVERS[solver](*problem)
    assert budgets.dtype == np.int64
    assert budgets.shape == (of.size,)
    assert budgets.sum() == total
    assert ((low <= budgets) & (budgets <= high)).all()


@given(
    st.lists(RATES, min_size=1, max_size=4),
    st.integers(2, 4),
    SHAPES,
    TAUS,
    st.sampled_from(["fast", "heap"]),
    st.data(),
)
def test_equal_prompts_differ_by_at_most_one(
    rates: list[float], copies: int, alpha: float, tau: float, solver: str, data: st.DataObject
) -> None:
    p_P = np.array(rates * copies)
    total = data.draw(st.integers(2 * len(p_P), 9 * len(p_P)))
    budgets = SOLVERS[solver](coba_gains(p_P, alpha, 3.0, tau), total, 2, 9).reshape(copies, -1)
    assert np.ptp(budgets, axis=0).max() <= 1


@given(problems(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_budgets_up_to_one(
    problem: tuple[Gains, int, int, int], random: Random
) -> None:
    of, total, low, high = problem
    order = list(range(of.size))
    random.shuffle(order)

    class Permuted(Gains):
        size = of.size

        def log_gain(self, budget: np.ndarray) -> np.ndarray:
            back = np.empty_like(budget)
            back[order] = budget
            return of.log_gain(back)[order]

    difference = fast(Permuted(), total, low, high) - fast(of, total, low, high)[order]
    assert np.abs(difference).max() <= 1


@given(problems(max_width=20))
def test_one_rollout_more_goes_to_one_prompt_and_takes_from_none(
    problem: tuple[Gains, int, int, int],
) -> None:
    of, total, low, high = problem
    if total == of.size * high:
        total -= 1
    if high > low:
        added = fast(of, total + 1, low, high) - fast(of, total, low, high)
        assert sorted(added)[-1] == added.sum() == 1
        assert added.min() >= 0


@given(problems(max_width=20))
def test_no_rollout_would_be_worth_more_elsewhere(problem: tuple[Gains, int, int, int]) -> None:
    of, _, low, high = problem
    budgets = fast(*problem)
    given_up = of.log_gain(np.minimum(budgets, max(high - 1, low)))[budgets < high]
    kept = of.log_gain(np.maximum(budgets - 1, low))[budgets > low]
    assert given_up.max(initial=-np.inf) <= kept.min(initial=np.inf)


def test_rollouts_worth_nothing_are_spread_evenly() -> None:
    of = coba_gains(np.array([0.0, 0.5, 1.0, 0.0]), 5.5, 5.5, 4.0)
    for solver in SOLVERS.values():
        assert solver(of, 8 + 5 + 11, 2, 8).tolist() == [6, 8, 5, 5]


def test_gains_too_small_for_a_float_are_still_told_apart() -> None:
    of = coba_gains(np.array([1e-3, 2e-3]), alpha=150.0, beta=2.0, tau=1.0)
    assert of.log_gain(np.array([2, 2])).max() < -745.0  # e^−745 is the smallest positive float
    for solver in SOLVERS.values():
        assert solver(of, 12, 2, 10).tolist() == [2, 10]


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_no_prompts(solver: str) -> None:
    none = VarianceGains(np.zeros(0))
    assert SOLVERS[solver](none, 0, 2, 8).shape == (0,)
    with pytest.raises(InfeasibleBudgetError):
        SOLVERS[solver](none, 1, 2, 8)


@pytest.mark.parametrize("solver", sorted(SOLVERS))
@pytest.mark.parametrize(
    ("total", "limit", "advice"), [(11, 12, "raise the total to 12"), (25, 24, "lower the total to 24")]
)
def test_infeasible_totals_name_the_three_numbers_and_what_to_change(
    solver: str, total: int, limit: int, advice: str
) -> None:
    with pytest.raises(
        InfeasibleBudgetError, match=f"total={total} rollouts.* 3 prompts.*\\(4, 8\\).*{limit}.*{advice}"
    ):
        SOLVERS[solver](VarianceGains(np.full(3, 0.5)), total, 4, 8)


def test_gains_that_are_not_numbers_end_the_search() -> None:
    class Nameless(Gains):
        size = 3

        def log_gain(self, budget: np.ndarray) -> np.ndarray:
            return np.full(budget.shape, np.nan)

    assert fast(Nameless(), 12, 2, 100).shape == (3,)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_even_split(total: int, num_prompts: int) -> None:
    budgets = even_split(total, num_prompts)
    assert budgets.sum() == total
    assert np.ptp(budgets) <= 1
    assert (np.diff(budgets) <= 0).all()
