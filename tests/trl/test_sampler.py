"""Order of the prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from coba_rl.hosts.trl.sampler import EpochRepeatSampler


@given(
    size=st.integers(1, 20),
    mini=st.integers(1, 3),
    batch=st.integers(1, 4),
    repeat=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 5) | st.none(),
    start=st.integers(0, 4),
)
def test_any_epoch_equals_that_of_an_uninterrupted_repeat_sampler(
    size, mini, batch, repeat, shuffle, seed, start
):
    stock = RepeatSampler(range(size), mini, batch, repeat, shuffle, seed)
    ours = EpochRepeatSampler.like(RepeatSampler(range(size), mini, batch, repeat, shuffle, seed))
    epochs = [list(stock) for _ in range(start + 2)]
    assert len(ours) == len(stock)
    ours.set_epoch(start)
    assert [list(ours), list(ours)] == epochs[start : start + 2]


@pytest.mark.parametrize("calls", [1, 3])
def test_setting_the_same_epoch_again_changes_nothing(calls):
    sampler = EpochRepeatSampler(range(9), mini_repeat_count=2, seed=1)
    first = list(sampler)
    for _ in range(calls):
        sampler.set_epoch(0)
    assert list(sampler) == first
