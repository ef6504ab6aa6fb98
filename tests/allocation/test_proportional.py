"""Budgets in proportion to weights: sums, bounds, fairness and exactness."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import InfeasibleBudgetError
from coba_rl.allocation.solvers import proportional

WEIGHTS = st.lists(
    st.sampled_from([0.0, 1.0, 1e-6, 1e6, 0.1]) | st.floats(1e-6, 1e6), min_size=1, max_size=12
)


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
