"""Group statistics with uneven groups, against plain NumPy and on the cases that break other trainers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl_reference import reference_advantages

from coba_rl.hosts.trl.advantages import Groups, group_advantages

MODES = [
    ("group", "sum_then_normalize"),
    ("batch", "sum_then_normalize"),
    ("none", "sum_then_normalize"),
    ("group", "normalize_then_sum"),
]


def advantages(rewards, budgets, weights=None, scale="group", aggregation="sum_then_normalize"):
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    rewards = rewards.unsqueeze(1) if rewards.dim() == 1 else rewards
    weights = torch.ones(rewards.shape[1]) if weights is None else torch.as_tensor(weights)
    return group_advantages(
        rewards, weights.float(), torch.as_tensor(budgets), scale_rewards=scale, aggregation=aggregation
    )


@st.composite
def steps(draw):
    budgets = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    num_functions = draw(st.integers(1, 3))
    grid = st.one_of(st.just(float("nan")), st.integers(-8, 8).map(lambda k: k / 8))
    rows = st.lists(grid, min_size=num_functions, max_size=num_functions)
    rewards = draw(st.lists(rows, min_size=sum(budgets), max_size=sum(budgets)))
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=num_functions, max_size=num_functions))
    return np.array(rewards), np.array(weights), budgets


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
@given(step=steps())
@settings(deadline=None, max_examples=60)
def test_equals_a_loop_over_groups(step, scale, aggregation):
    rewards, weights, budgets = step
    got = advantages(rewards, budgets, weights, scale, aggregation).values_R
    expected = reference_advantages(rewards, weights, budgets, scale, aggregation)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_a_group_does_not_feel_the_size_of_the_others(scale):
    group = [1.0, 0.0, 0.0]
    alone = advantages(group, [3], scale=scale).values_R
    beside = advantages([*group, 0.25, 0.75, 0.5, 1.0, 0.0], [3, 5], scale=scale).values_R
    assert torch.equal(alone, beside[:3])


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
@pytest.mark.parametrize("level", [0.0, 0.35, 1234.567, -3e6, 1e-9])
def test_equal_rewards_get_exactly_zero(level, scale, aggregation):
    rewards, budgets = [level] * 4 + [level] * 7 + [level] * 3, [4, 7, 3]
    assert advantages(rewards, budgets, scale=scale, aggregation=aggregation).values_R.abs().max() == 0.0


@pytest.mark.parametrize("count", [3, 7, 8, 11, 128])
def test_rounding_residue_is_no_signal(count):
    """Sums of parts that agree up to rounding, at a size where the residue would beat the floor of 1e-4."""
    parts = torch.tensor([[1000.1, 2000.2], [2000.2, 1000.1]]).repeat(count, 1)
    parts[0] += 2.4e-4  # one unit in the last place of the larger part
    total = parts.sum(dim=1)
    assert ((total - total.mean()) / (total.std() + 1e-4)).abs().max() > 0.5  # what dividing residues makes
    result = advantages(parts, [2 * count])
    assert result.values_R.abs().max() == 0.0
    assert result.is_std_zero_R.all()


def test_seven_of_eight_equal_with_one_unjudged():
    result = advantages([0.35] * 7 + [float("nan")], [8])
    assert result.values_R.tolist() == [0.0] * 8
    assert result.is_std_zero_R.all()


def test_one_that_differs_is_a_signal_of_ordinary_size():
    values = advantages([0.35] * 7 + [0.36], [8]).values_R
    assert 2.0 < values[-1] < 2.6
    assert torch.allclose(values.sum(), torch.tensor(0.0), atol=1e-4)


def test_small_differences_of_large_rewards_survive():
    values = advantages([1e4, 1e4 + 0.25], [2]).values_R
    assert values[1] > 0.5


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
def test_a_group_of_one_gets_zero(scale, aggregation):
    result = advantages([0.9, 1.0, 0.0, 0.3], [1, 2, 1], scale=scale, aggregation=aggregation)
    assert result.values_R[0] == 0.0
    assert result.values_R[3] == 0.0
    assert result.values_R[1] > 0.0


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
def test_unjudged_rollouts_get_zero_and_leave_the_others_alone(scale, aggregation):
    nan = float("nan")
    with_unjudged = advantages([1.0, nan, 0.0, nan, nan], [3, 2], scale=scale, aggregation=aggregation)
    without = advantages([1.0, 0.0], [2], scale=scale, aggregation=aggregation)
    assert torch.equal(with_unjudged.values_R[[0, 2]], without.values_R)
    assert with_unjudged.values_R[[1, 3, 4]].abs().max() == 0.0


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
def test_nothing_judged_at_all(scale, aggregation):
    values = advantages([float("nan")] * 5, [2, 3], scale=scale, aggregation=aggregation).values_R
    assert values.tolist() == [0.0] * 5


NAN = float("nan")


@pytest.mark.parametrize(("scale", "aggregation"), MODES)
@pytest.mark.parametrize(
    ("group", "dead"),
    [
        ([1.0, 1.0, 1.0], True),
        ([0.5], True),
        ([0.5] + [NAN] * 7, True),
        ([NAN, NAN], True),
        ([1.0, 1.0, NAN], True),
        ([1.0, 0.0], False),
        ([1.0, 0.0, NAN], False),
    ],
)
def test_zero_std_tells_the_groups_own_spread(group, dead, scale, aggregation):
    """In a batch that has a spread, and in one that has none."""
    for other in ([0.0, 1.0, 1.0], [0.5, 0.5]):
        result = advantages([*other, *group], [len(other), len(group)], scale=scale, aggregation=aggregation)
        expected = [other[0] == other[1]] * len(other) + [dead] * len(group)
        assert result.is_std_zero_R.tolist() == expected


def test_zero_std_counts_only_rewards_that_have_a_weight():
    rewards = [[1.0, 0.2], [1.0, 0.4]]
    for _, aggregation in MODES:
        assert advantages(rewards, [2], [1.0, 0.0], aggregation=aggregation).is_std_zero_R.all()
        assert not advantages(rewards, [2], [1.0, 1.0], aggregation=aggregation).is_std_zero_R.any()


def test_padding_and_back():
    budgets = torch.tensor([2, 1, 3])
    values = torch.arange(12.0).view(6, 2)
    groups = Groups(budgets)
    padded = groups.pad(values)
    assert padded.shape == (3, 3, 2)
    assert torch.isnan(padded).sum() == 6
    assert torch.equal(groups.unpad(padded), values)


def test_equal_budgets_make_the_matrix_of_a_reshape():
    values = torch.randn(12)
    assert torch.equal(Groups(torch.tensor([4, 4, 4])).pad(values), values.view(3, 4))
