"""The mode `weights`: even rollouts, and the strategy's budgets as factors of the advantages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator, InfeasibleBudgetError, OptionError
from coba_rl.allocation.spec import AllocatorSpec

BOUNDS = (2, 32)


def pair(name: str, **options: Any) -> list[BudgetAllocator]:
    """An allocator in each mode."""
    made = [BudgetAllocator(name, bounds=BOUNDS, mode=mode, **options) for mode in ("rollouts", "weights")]
    for allocator in made:
        allocator.begin(10)
    return made


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Pass rates of a batch, some unknown, and a total that can be split evenly."""
    rates = draw(st.lists(st.one_of(st.floats(0, 1), st.just(np.nan)), min_size=1, max_size=12))
    return np.array(rates), len(rates) * draw(st.integers(*BOUNDS))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(step=steps())
def test_weights_are_the_budgets_of_the_other_mode_over_their_mean(
    name: str, step: tuple[np.ndarray, int]
) -> None:
    rates, total = step
    ids = list(range(len(rates)))
    uneven, even = (allocator.allocate(ids, total, pass_rates=rates) for allocator in pair(name))
    assert uneven.weights is None
    assert even.weights is not None
    assert even.budgets.tolist() == [total // len(ids)] * len(ids)
    np.testing.assert_allclose(even.weights * total / len(ids), uneven.budgets, rtol=1e-12)
    assert even.weights.mean() == pytest.approx(1.0, rel=1e-12)


def test_a_worked_step() -> None:
    uneven, even = pair("knapsack")
    for allocator in (uneven, even):
        allocator.observe(["hard"] * 4 + ["half"] * 4 + ["easy"] * 4, [0] * 4 + [1, 0] * 2 + [1] * 4)
    ids = ["hard", "half", "easy", "new"]
    assert uneven.allocate(ids, total=32).budgets.tolist() == [2, 20, 2, 8]
    allocation = even.allocate(ids, total=32)
    assert allocation.budgets.tolist() == [8, 8, 8, 8]
    assert allocation.weights is not None
    assert allocation.weights.tolist() == [0.25, 2.5, 0.25, 1.0]
    metrics = even.metrics()
    assert (metrics["coba/weight_min"], metrics["coba/weight_max"]) == (0.25, 2.5)
    assert metrics["coba/effective_prompts_by_weight"] == pytest.approx(4**2 / (2 * 0.25**2 + 2.5**2 + 1))
    assert metrics["coba/effective_prompts"] == 4.0
    assert not [name for name in uneven.metrics() if "weight" in name]


@given(num_prompts=st.integers(1, 50), each=st.integers(*BOUNDS))
def test_even_budgets_weigh_exactly_one(num_prompts: int, each: int) -> None:
    """So that `uniform` changes no bit of a trainer's advantages."""
    _, even = pair("uniform")
    weights = even.allocate(list(range(num_prompts)), total=num_prompts * each).weights
    assert weights is not None
    assert set(weights.tolist()) == {1.0}


def test_an_empty_batch_has_no_weights() -> None:
    _, even = pair("coba")
    weights = even.allocate([], total=0).weights
    assert weights is not None
    assert weights.tolist() == []


def test_nothing_to_share_out_weighs_nothing() -> None:
    """Of the built-in strategies only the released one takes such a total."""
    _, even = pair("coba-release")
    assert even.allocate(["a", "b"], total=0).budgets.tolist() == [0, 0]
    assert even.metrics()["coba/weight_max"] == 0.0


def test_a_total_that_cannot_be_split_evenly_is_refused_and_changes_nothing() -> None:
    _, even = pair("coba")
    before = even.state_dict()
    with pytest.raises(InfeasibleBudgetError, match=r"total=25 .*3 prompts.*a multiple of 3, such as 27\."):
        even.allocate(["a", "b", "c"], total=25)
    assert even.state_dict() == before


@pytest.mark.parametrize("mode", ["weight", None, 1])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(OptionError, match=f"mode={mode!r}: expected one of 'rollouts', 'weights'"):
        BudgetAllocator(mode=mode)


def test_a_configuration_says_the_mode() -> None:
    assert AllocatorSpec.from_mapping({}).build().mode == "rollouts"
    assert AllocatorSpec.from_mapping({"mode": "weights", "kappa": 9}).build().mode == "weights"
    with pytest.raises(OptionError, match="Did you mean 'mode'"):
        AllocatorSpec.from_mapping({"mod": "weights"})


def play(allocator: BudgetAllocator, first: int) -> list[list[float]]:
    """Weights of three steps whose outcomes depend on their prompts."""
    seen = []
    for step in range(first, first + 3):
        allocation = allocator.allocate(["a", "b", "c", step], total=32)
        assert allocation.weights is not None
        seen.append(allocation.weights.tolist())
        ids = [allocation.prompt_ids[position] for position in allocation.repeat_index]
        allocator.observe(ids, [float(i % 8 < i // 8 * 2) for i in range(32)])
    return seen


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_resume_equals_no_interruption(name: str) -> None:
    _, straight = pair(name)
    play(straight, first=1)
    _, resumed = pair(name)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert play(resumed, first=4) == play(straight, first=4)
    assert resumed.state_dict() == straight.state_dict()


def test_a_changed_mode_is_used_with_a_warning() -> None:
    uneven, even = pair("coba")
    play(even, first=1)
    with pytest.warns(UserWarning, match="changed allocation options .*mode: 'weights' → 'rollouts'"):
        uneven.load_state_dict(even.state_dict())
    assert uneven.allocate(["a", "b"], total=9).weights is None
