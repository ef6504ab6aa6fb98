"""The paper's equations: worked values, closed forms, and exact arithmetic as the oracle."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import BudgetAllocator, OptionError
from coba_rl.allocation.capability import Capability, beta_shape, transform
from coba_rl.allocation.strategies import make_strategy
from coba_rl.allocation.strategies.coba import BetaStrategy, CobaPaper, ExploreExploit, variance_tau
from coba_rl.allocation.strategies.release import CobaRelease
from coba_rl.allocation.value import (
    KnapsackGains,
    VarianceGains,
    coba_gains,
    coba_value,
    log_beta_pdf,
    saturation,
)

# (F̄, F̃, α, β) for κ = 11, α_min = 1, λ = 9, γ = 10
WORKED = [
    (1.0, 1.0, 10.0, 1.0), (0.8, 0.8, 8.2, 2.8), (0.7, 0.7, 7.3, 3.7), (0.5, 0.5, 5.5, 5.5), (0.45, 0.3775, 4.398, 6.602),
    (0.4, 0.2689, 3.420, 7.580), (0.3, 0.1192, 2.073, 8.927), (0.25, 0.0759, 1.683, 9.317), (0.2, 0.0474, 1.427, 9.573),
    (0.0, 0.0067, 1.060, 9.940),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "transformed", "alpha", "beta"), WORKED)
def test_worked_values_of_equations_6_and_7(
    failure: float, transformed: float, alpha: float, beta: float
) -> None:
    assert transform(failure) == pytest.approx(transformed, abs=6e-5)
    shape = beta_shape(transform(failure), kappa=11.0, alpha_min=1.0, alpha_max=10.0, slope=9.0)
    assert shape == pytest.approx((alpha, beta), abs=6e-4)


@pytest.mark.parametrize(("failure", "transformed", "alpha", "beta"), WORKED)
def test_worked_values_reach_the_allocator(
    failure: float, transformed: float, alpha: float, beta: float
) -> None:
    allocator = BudgetAllocator("coba-paper", window=1)
    allocator.observe(["a"] * 20, [1.0] * round(20 * (1.0 - failure)) + [0.0] * round(20 * failure))
    allocator.allocate(["a"], total=16)
    metrics = allocator.metrics()
    assert (metrics["coba/alpha"], metrics["coba/beta"]) == pytest.approx((alpha, beta), abs=6e-4)


def test_transform_is_continuous_at_one_half() -> None:
    assert transform(0.5) == 0.5
    assert transform(np.nextafter(0.5, 0.0)) == pytest.approx(transform(np.nextafter(0.5, 1.0)), abs=1e-12)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.1, 1e6))
def test_transform_rises_with_failure_and_stays_a_share(first: float, second: float, gamma: float) -> None:
    low, high = sorted((transform(first, gamma), transform(second, gamma)))
    assert 0.0 <= low <= high <= 1.0
    assert (transform(min(first, second), gamma), transform(max(first, second), gamma)) == (low, high)


@given(st.floats(0.0, 1.0))
def test_a_transform_below_0_is_none(failure: float) -> None:
    assert transform(failure, below=0.0) == failure


@given(st.floats(0.0, 1.0))
def test_the_preferred_pass_rate_is_the_transformed_failure_rate(transformed: float) -> None:
    alpha, beta = beta_shape(transformed, kappa=11.0, alpha_min=1.0, alpha_max=10.0, slope=9.0)
    assert (alpha - 1.0) / (alpha + beta - 2.0) == pytest.approx(transformed, abs=1e-12)
    grid = np.linspace(0.0, 1.0, 2001)
    mode = grid[np.argmax(log_beta_pdf(grid, alpha, beta))]
    assert mode == pytest.approx(transformed, abs=1.0 / 2000)


@given(st.floats(0.0, 1.0), st.floats(0.1, 40.0))
def test_alpha_is_clipped_and_beta_is_the_rest(transformed: float, slope: float) -> None:
    alpha, beta = beta_shape(transformed, kappa=11.0, alpha_min=2.0, alpha_max=6.0, slope=slope)
    assert alpha == pytest.approx(min(2.0 + slope * transformed, 6.0))
    assert alpha + beta == pytest.approx(11.0)


def test_failure_rate_averages_prompts_and_not_rollouts() -> None:
    allocator = BudgetAllocator("uniform")
    allocator.observe(["easy"] * 90 + ["hard"] * 10, [1.0] * 90 + [0.0] * 10)
    assert allocator.metrics()["coba/success_per_prompt"] == 0.5
    assert allocator.metrics()["coba/success_per_rollout"] == 0.9
    assert allocator.strategy.capability.failure_rate == 0.5


def test_capability_is_the_mean_of_the_last_k_steps() -> None:
    capability = Capability(window=3)
    assert (capability.failure_rate, capability.started) == (1.0, False)
    for failure, mean in ((0.8, 0.8), (0.4, 0.6), (0.0, 0.4), (0.2, 0.2)):
        capability.update(failure)
        assert capability.failure_rate == pytest.approx(mean)
    with pytest.raises(OptionError, match="window=0"):
        Capability(window=0)


@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 1.0), (1.0, 9.94), (10.0, 1.0), (5.5, 5.5), (7.26, 3.74), (1.5, 10.5)]
)
def test_the_density_integrates_to_one(alpha: float, beta: float) -> None:
    p_P = (np.arange(20000) + 0.5) / 20000
    assert np.exp(log_beta_pdf(p_P, alpha, beta)).mean() == pytest.approx(1.0, abs=1e-5)


def test_the_density_at_the_ends() -> None:
    ends = np.array([0.0, 1.0])
    assert np.exp(log_beta_pdf(ends, 1.0, 10.0)).tolist() == pytest.approx([10.0, 0.0])
    assert np.exp(log_beta_pdf(ends, 10.0, 1.0)).tolist() == pytest.approx([0.0, 10.0])


def test_value_is_saturation_times_density() -> None:
    p_P = np.array([0.25])
    assert saturation(8, p_P, tau=2.0)[0] == pytest.approx(1.0 - math.exp(-8 / 2.0 * 0.1875))
    assert np.exp(log_beta_pdf(p_P, 2.0, 3.0))[0] == pytest.approx(12 * 0.25 * 0.75**2)
    expected = (1.0 - math.exp(-0.75)) * 12 * 0.25 * 0.75**2
    assert coba_value(8, p_P, 2.0, 3.0, 2.0)[0] == pytest.approx(expected)


def exact_coba_gain(p: Fraction, budget: int, alpha: int, beta: int, tau: Fraction) -> float:
    """log(V(B + 1) − V(B)) of Eq. 9 in 400 digits, for whole α and β."""
    with localcontext() as context:
        context.prec = 400
        rate = p * (1 - p) / tau
        fall = Decimal(rate.numerator) / Decimal(rate.denominator)
        constant = Fraction(
            math.factorial(alpha + beta - 1), math.factorial(alpha - 1) * math.factorial(beta - 1)
        )
        density = constant * p ** (alpha - 1) * (1 - p) ** (beta - 1)
        gain = Decimal(density.numerator) / Decimal(density.denominator)
        return float((gain * ((-fall * budget).exp() - (-fall * (budget + 1)).exp())).ln())


RATES = st.fractions(Fraction(1, 1000), Fraction(999, 1000)) | st.sampled_from(
    [Fraction(1, 10**12), 1 - Fraction(1, 10**12), Fraction(1, 2)]
)


@given(RATES, st.integers(1, 200), st.integers(1, 12), st.integers(1, 12), st.fractions(Fraction(1, 20), 20))
def test_coba_gain_is_the_difference_of_values(
    p: Fraction, budget: int, alpha: int, beta: int, tau: Fraction
) -> None:
    found = coba_gains(np.array([float(p)]), alpha, beta, float(tau)).log_gain(np.array([budget]))[0]
    # p is rounded to a float before it gets here; next to 1 that alone moves log(1 − p) by 1e-4.
    assert found == pytest.approx(
        exact_coba_gain(Fraction(float(p)), budget, alpha, beta, tau), rel=1e-9, abs=1e-9
    )


@given(RATES, st.integers(1, 60))
def test_knapsack_gain_is_the_difference_of_values(p: Fraction, budget: int) -> None:
    p = Fraction(float(p))

    def value(n: int) -> Fraction:
        return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2

    with localcontext() as context:
        context.prec = 60
        gain = value(budget + 1) - value(budget)
        exact = float((Decimal(gain.numerator) / Decimal(gain.denominator)).ln())
    found = KnapsackGains(np.array([float(p)])).log_gain(np.array([budget]))[0]
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-9)


@given(RATES, st.integers(1, 500))
def test_variance_gain_is_the_difference_of_values(p: Fraction, budget: int) -> None:
    p = Fraction(float(p))
    exact = p * (1 - p) * (Fraction(1, budget) - Fraction(1, budget + 1))
    found = VarianceGains(np.array([float(p)])).log_gain(np.array([budget]))[0]
    assert math.exp(found) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coba", {}),
        ("coba", {"tau": 0.4}),
        ("coba-paper", {}),
        ("static-explore", {"tau": 2.0}),
        ("knapsack", {}),
        ("variance", {}),
    ],
)
@given(rates=st.lists(st.floats(1e-9, 1.0 - 1e-9), min_size=1, max_size=5), budget=st.integers(1, 60))
def test_a_value_is_the_sum_of_the_gains_up_to_the_mean_budget(
    name: str, options: dict[str, float], rates: list[float], budget: int
) -> None:
    strategy, p_P = make_strategy(name, **options), np.array(rates)
    first = (
        0 if isinstance(strategy, BetaStrategy) else 1
    )  # of `knapsack` and `variance` the first is worth nothing
    log_gain_PB = strategy.gains(p_P, budget).log_gain(
        np.broadcast_to(np.arange(first, budget), (len(p_P), budget - first))
    )
    value_P = strategy.value(p_P, float(budget))
    assert value_P == pytest.approx(np.exp(log_gain_PB).sum(axis=1), rel=1e-6, abs=1e-12)


def test_the_constants_of_a_value_come_from_the_batch() -> None:
    strategy, believed, true = (
        make_strategy("coba-paper"),
        np.array([0.0, np.nan, 1.0]),
        np.array([0.4, 0.5, 0.6]),
    )
    assert variance_tau(believed[[0, 2]]) == 12.0
    expected = coba_value(16.0, true, *strategy.shape(), 12.0)
    assert strategy.value(true, 16.0, believed).tolist() == expected.tolist()
    assert strategy.value(true, 16.0).tolist() != expected.tolist()


@pytest.mark.parametrize("name", ["uniform", "gvm", "coba-release"])
def test_a_rule_without_a_value_function_has_no_value(name: str) -> None:
    assert make_strategy(name).value(np.array([0.5]), 16.0) is None


@pytest.mark.parametrize("gains", [lambda p: coba_gains(p, 1.0, 10.0, 3.0), KnapsackGains, VarianceGains])
def test_a_prompt_always_or_never_solved_is_worth_nothing(gains) -> None:
    budget_PB = np.broadcast_to(np.arange(1, 200), (2, 199))
    assert (gains(np.array([0.0, 1.0])).log_gain(budget_PB) == -np.inf).all()


@pytest.mark.parametrize("gains", [lambda p: coba_gains(p, 2.0, 9.0, 3.0), KnapsackGains, VarianceGains])
def test_tiny_and_nearly_full_pass_rates_keep_finite_falling_gains(gains) -> None:
    p_P = np.array([1e-12, 1e-9, 1.0 - 1e-9, 1.0 - 1e-12])
    log_gain_PB = gains(p_P).log_gain(np.broadcast_to(np.arange(1, 1000), (4, 999)))
    assert np.isfinite(log_gain_PB).all()
    assert (np.diff(log_gain_PB) <= 0.0).all()


@pytest.mark.parametrize("gains", [lambda p: coba_gains(p, 2.0, 9.0, 3.0), KnapsackGains, VarianceGains])
@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=6), st.floats(-40.0, 5.0))
def test_count_above_counts_the_gains_above(gains, rates: list[float], threshold: float) -> None:
    of = gains(np.array(rates))
    table = of.log_gain(np.broadcast_to(np.arange(2, 40), (of.size, 38)))
    counted = 2 + (table >= threshold).sum(axis=1)
    assert np.abs(of.count_above(threshold, 2, 40) - counted).max() <= 1


@pytest.mark.parametrize(
    ("rates", "tau"),
    [
        ([0.5] * 4, 3.0),
        ([0.3, 0.7], 3.0 + 9.0 * 0.04 / 0.1667),
        ([0.0, 1.0], 12.0),
        ([0.01, 0.01, 0.0], 3.0),
        ([], 3.0),
    ],
)
def test_tau_follows_the_spread_of_the_batch(rates: list[float], tau: float) -> None:
    assert variance_tau(np.array(rates)) == pytest.approx(tau)


def test_tau_of_coba_follows_the_mean_budget() -> None:
    allocator = BudgetAllocator("coba", tau_per_rollout=0.05)
    for mean_budget in (8, 16, 64):
        allocator.allocate(["a", "b"], total=2 * mean_budget)
        assert allocator.metrics()["coba/tau"] == pytest.approx(0.05 * mean_budget)
    fixed = BudgetAllocator("coba", tau=0.7)
    fixed.allocate(["a", "b"], total=32)
    assert fixed.metrics()["coba/tau"] == 0.7


def test_before_any_outcome_the_policy_counts_as_failing() -> None:
    assert CobaPaper().shape() == (10.0, 1.0)
    assert CobaRelease(kappa=7.0).shape() == (5.0, 2.0)
    assert ExploreExploit().shape() == (1.0, 10.0)
