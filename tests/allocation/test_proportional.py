"""Budgets in proportion to weights: sums, bounds, fairness and exactness."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import InfeasibleBudgetError
from coba_rl.allocation.proportional import proportional

WEIGHTS = st.lists(
    st.sampled_from([0.0, 1.0, 3.0, 0.1, 1e-200, 1e200, 5e-324]) | st.floats(0.0, 1e308),
    min_size=1,
    max_size=12,
)


@st.composite
def problems(
    draw: st.DrawFn, weights: st.SearchStrategy[list[float]] = WEIGHTS, least: int = 0
) -> tuple[list[float], int, int, int]:
    """(weights, total, low, high) with a total that fits."""
    drawn = draw(weights)
    low = draw(st.integers(least, 4))
    high = low + draw(st.integers(0, 40))
    return drawn, draw(st.integers(len(drawn) * low, len(drawn) * high)), low, high


def exact_shares(weights: list[float], total: int, low: int, high: int) -> list[Fraction]:
    """clip(s·w, low, high) with sum `total`, without rounding; what no weight can take goes to the others evenly."""
    weight_P = [Fraction(weight) for weight in weights]
    num_live = sum(weight > 0 for weight in weight_P)
    if total >= num_live * high + (len(weights) - num_live) * low:
        rest = Fraction(total - num_live * high, max(len(weights) - num_live, 1))
        return [Fraction(high) if weight > 0 else rest for weight in weight_P]

    def shares(s: Fraction) -> list[Fraction]:
        return [min(max(s * weight, Fraction(low)), Fraction(high)) for weight in weight_P]

    points = sorted({Fraction(0)} | {Fraction(bound) / w for w in weight_P if w > 0 for bound in (low, high)})
    for before, after in itertools.pairwise(points):
        first, last = sum(shares(before)), sum(shares(after))
        if first <= total < last:
            return shares(before + (after - before) * (total - first) / (last - first))
    return shares(points[-1])


def by_largest_remainder(share_P: list[Fraction], total: int) -> list[int]:
    """Rounds down, then raises the largest remainders, the earlier first among equals."""
    budgets = [int(share) for share in share_P]
    order = sorted(range(len(share_P)), key=lambda i: budgets[i] - share_P[i])
    for i in order[: total - sum(budgets)]:
        budgets[i] += 1
    return budgets


# Small whole numbers, also far apart: with a minimum of 1 only those of one size are between the bounds at once,
# so that no sum of weights is rounded, and ties of remainders are ties in floats too.
FAR_APART = st.lists(
    st.builds(lambda n, power: n * 2.0**power, st.integers(0, 50), st.sampled_from([-1000, -660, 0, 600])),
    min_size=1,
    max_size=10,
)
NEAR = st.lists(st.integers(0, 50).map(float), min_size=1, max_size=10)


@given(problems(FAR_APART, least=1) | problems(NEAR))
def test_exact_ties_included(problem: tuple[list[float], int, int, int]) -> None:
    weights, *rest = problem
    expected = by_largest_remainder(exact_shares(*problem), rest[0])
    assert proportional(np.array(weights), *rest).tolist() == expected


@given(problems())
def test_any_weights_get_their_exact_share_rounded_up_or_down(
    problem: tuple[list[float], int, int, int],
) -> None:
    weights, *rest = problem
    with np.errstate(all="raise", under="ignore"):
        budgets = proportional(np.array(weights), *rest).tolist()
    assert sum(budgets) == rest[0]
    for budget, share in zip(budgets, exact_shares(*problem), strict=True):
        assert abs(budget - share) < 1 + Fraction(1, 10**9)


def test_the_smallest_weight_does_not_make_the_others_even() -> None:
    assert proportional(np.array([1e-200, 1.0, 3.0]), total=18, low=2, high=20).tolist() == [2, 4, 12]
    assert proportional(np.array([1e-200, 3e-200, 1.0]), total=34, low=2, high=20).tolist() == [3, 11, 20]


@given(WEIGHTS, st.integers(0, 4), st.integers(0, 40), st.data())
def test_sum_bounds_and_order(weights: list[float], low: int, width: int, data: st.DataObject) -> None:
    high = low + width
    total = data.draw(st.integers(len(weights) * low, len(weights) * high))
    budgets = proportional(np.array(weights), total, low, high)
    assert budgets.dtype == np.int64
    assert budgets.sum() == total
    assert ((low <= budgets) & (budgets <= high)).all()
    ascending = budgets[np.argsort(weights, kind="stable")]
    assert (np.diff(ascending) >= -1).all()  # a heavier prompt gets no less, up to the rounding


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=1, max_size=10), st.data())
def test_equal_weights_differ_by_at_most_one(weights: list[float], data: st.DataObject) -> None:
    weight_P = np.array(weights)
    total = data.draw(st.integers(2 * len(weights), 16 * len(weights)))
    budgets = proportional(weight_P, total, 2, 16)
    for weight in set(weights):
        assert np.ptp(budgets[weight_P == weight]) <= 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(0, 500))
def test_within_one_of_the_exact_share_when_no_bound_binds(weights: list[int], total: int) -> None:
    budgets = proportional(np.array(weights, dtype=float), total, 0, max(total, 1))
    exact = [Fraction(total * weight, sum(weights)) for weight in weights]
    assert all(abs(budget - share) < 1 for budget, share in zip(budgets.tolist(), exact, strict=True))


def test_exact_shares_are_given_exactly() -> None:
    assert proportional(np.array([3.0, 1.0, 2.0]), total=36, low=2, high=30).tolist() == [18, 6, 12]


def test_what_a_bound_takes_goes_to_the_others_in_proportion() -> None:
    assert proportional(np.array([100.0, 3.0, 1.0]), total=24, low=2, high=12).tolist() == [12, 9, 3]
    assert proportional(np.array([0.001, 3.0, 1.0]), total=26, low=2, high=20).tolist() == [2, 18, 6]


def test_prompts_of_no_weight_get_the_minimum_until_the_others_are_full() -> None:
    assert proportional(np.array([0.0, 1.0, 0.0]), total=12, low=2, high=8).tolist() == [2, 8, 2]
    assert proportional(np.array([0.0, 1.0, 0.0]), total=15, low=2, high=8).tolist() == [4, 8, 3]
    assert proportional(np.zeros(3), total=10, low=2, high=8).tolist() == [4, 3, 3]


def test_a_total_outside_the_bounds_is_refused() -> None:
    with pytest.raises(InfeasibleBudgetError, match="total=5 rollouts"):
        proportional(np.ones(3), total=5, low=2, high=8)
