"""The modes `weights` and `both`: the strategy's shares as factors of the advantages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator, InfeasibleBudgetError, OptionError
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.allocation.weights import WEIGHT_BOUNDS

BOUNDS = (2, 32)
WEIGHING = ("weights", "both")


def make(name: str, mode: str, **options: Any) -> BudgetAllocator:
    allocator = BudgetAllocator(name, bounds=BOUNDS, mode=mode, **options)
    allocator.begin(10)
    return allocator


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Rollouts of some prompts, in any order, some unjudged."""
    num_prompts = draw(st.integers(1, 8))
    rollout = st.tuples(st.integers(0, num_prompts - 1), st.sampled_from([0.0, 1.0, np.nan]))
    rollouts = draw(st.lists(rollout, max_size=80))
    return [prompt for prompt, _ in rollouts], [success for _, success in rollouts]


@pytest.mark.parametrize("mode", WEIGHING)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(step=outcomes())
def test_weights_have_the_mean_1_and_keep_to_the_bounds(
    name: str, mode: str, step: tuple[list[int], list[float]]
) -> None:
    weights = make(name, mode).weigh(range(8), *step)
    assert weights.mean() == pytest.approx(1.0, rel=1e-12)
    assert weights.min() >= WEIGHT_BOUNDS[0]
    assert weights.max() <= WEIGHT_BOUNDS[1]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(step=outcomes(), data=st.data())
def test_weights_do_not_depend_on_the_order_of_arrival(
    name: str, step: tuple[list[int], list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(step[0]))))
    shuffled = [[column[i] for i in order] for column in step]
    weights, again = (make(name, "weights").weigh(range(8), *given) for given in (step, shuffled))
    assert weights.tolist() == again.tolist()


@pytest.mark.parametrize("name", sorted({*STRATEGIES} - {"linear-decay", "exponential-decay"}))
def test_weighing_learns_nothing(name: str) -> None:
    """What follows is as if nobody had asked: the outcomes are observed once, by `observe`.

    The decays count what they share out, and weights are that.
    """
    asked, not_asked = make(name, "rollouts"), make(name, "rollouts")
    asked.mode = "weights"
    ids, successes = ["a", "b", "c"] * 8, [1.0, 0.0, 1.0] * 4 + [0.0] * 12
    asked.weigh(["a", "b", "c"], ids, successes)
    asked.mode = "rollouts"
    for allocator in (asked, not_asked):
        allocator.observe(ids, successes)
    budgets = [made.allocate(["a", "b", "c"], 24).budgets.tolist() for made in (asked, not_asked)]
    assert budgets[0] == budgets[1]


def test_weights_are_the_shares_given_the_outcomes_of_the_step() -> None:
    """A worked step: knapsack's window is then the step itself, 2 of 4, 0 of 4 and 4 of 4."""
    allocator = make("knapsack", "weights")
    allocator.observe(["half"] * 4 + ["hard"] * 4 + ["easy"] * 4, [1.0] * 4 + [1.0] * 4 + [0.0] * 4)
    rollouts = ["half"] * 4 + ["hard"] * 4 + ["easy"] * 4
    weights = allocator.weigh(["half", "hard", "easy"], rollouts, [1, 0] * 2 + [0] * 4 + [1] * 4)
    # Of 3 · 16 shares the half gets 32, the most; of the 16 left the others have 8 each, the fewest.
    assert weights.tolist() == [2.0, 0.5, 0.5]
    metrics = allocator.metrics()
    assert (metrics["coba/weight_min"], metrics["coba/weight_max"]) == (0.5, 2.0)
    assert metrics["coba/effective_prompts_by_weight"] == pytest.approx(9 / 4.5)


def test_rollouts_alone_weigh_1() -> None:
    allocator = make("coba", "rollouts")
    assert allocator.weigh(["a", "b"], ["a", "b"] * 4, [1.0, 0.0] * 4).tolist() == [1.0, 1.0]
    assert not [name for name in allocator.metrics() if "weight" in name]


@given(step=outcomes())
def test_uniform_weighs_exactly_one(step: tuple[list[int], list[float]]) -> None:
    """So that it changes no bit of a trainer's advantages."""
    assert set(make("uniform", "weights").weigh(range(8), *step).tolist()) == {1.0}


def test_nothing_weighs_nothing() -> None:
    assert make("coba", "weights").weigh([], [], []).tolist() == []
    assert make("coba", "weights").weigh(["a", "b"], [], []).tolist() == [1.0, 1.0]


def test_rows_of_one_id_weigh_the_same() -> None:
    weights = make("coba", "weights").weigh(
        ["a", "b", "a"], ["a"] * 8 + ["b"] * 8, [1.0, 0.0] * 4 + [0.0] * 8
    )
    assert weights[0] == weights[2]


def test_a_success_for_each_rollout_is_needed() -> None:
    with pytest.raises(ValueError, match="2 prompt ids but 1 successes"):
        make("coba", "weights").weigh(["a"], ["a", "a"], [1.0])


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_the_mode_weights_shares_out_evenly(name: str) -> None:
    allocation = make(name, "weights").allocate(["a", "b", "c"], 24, pass_rates=np.array([0.1, np.nan, 0.9]))
    assert allocation.budgets.tolist() == [8, 8, 8]


@st.composite
def steps(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Pass rates of a batch, some unknown, and a feasible total."""
    rates = draw(st.lists(st.one_of(st.floats(0, 1), st.just(np.nan)), min_size=1, max_size=12))
    return np.array(rates), draw(st.integers(BOUNDS[0] * len(rates), BOUNDS[1] * len(rates)))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(step=steps())
def test_both_spends_the_total_within_the_bounds(name: str, step: tuple[np.ndarray, int]) -> None:
    rates, total = step
    budgets = make(name, "both").allocate(range(len(rates)), total, pass_rates=rates).budgets
    assert budgets.sum() == total
    assert budgets.min() >= BOUNDS[0]
    assert budgets.max() <= BOUNDS[1]


def test_both_takes_from_dead_groups_alone() -> None:
    """What can show something gets much the same, whatever is preferred; what cannot gets the fewest."""
    rates = np.array([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
    budgets = make("coba", "both").allocate(range(6), 96, pass_rates=rates).budgets
    assert budgets.tolist() == [2, 23, 23, 23, 23, 2]
    assert make("uniform", "both").allocate(range(6), 96, pass_rates=rates).budgets.tolist() == [16] * 6


def test_a_total_that_cannot_be_split_evenly_is_refused_and_changes_nothing() -> None:
    even = make("coba", "weights")
    before = even.state_dict()
    with pytest.raises(InfeasibleBudgetError, match=r"total=25 .*3 prompts.*a multiple of 3, such as 27\."):
        even.allocate(["a", "b", "c"], total=25)
    assert even.state_dict() == before


@pytest.mark.parametrize("mode", ["weight", None, 1])
def test_another_mode_is_refused(mode: Any) -> None:
    with pytest.raises(OptionError, match=f"mode={mode!r}: expected one of 'rollouts', 'weights', 'both'"):
        BudgetAllocator(mode=mode)


def test_a_configuration_says_the_mode() -> None:
    assert AllocatorSpec.from_mapping({}).build().mode == "rollouts"
    assert AllocatorSpec.from_mapping({"mode": "weights", "kappa": 9}).build().mode == "weights"
    with pytest.raises(OptionError, match="Did you mean 'mode'"):
        AllocatorSpec.from_mapping({"mod": "weights"})


def play(allocator: BudgetAllocator, first: int) -> list[list[float]]:
    """Budgets and weights of three steps whose outcomes depend on their prompts."""
    seen = []
    for step in range(first, first + 3):
        allocation = allocator.allocate(["a", "b", "c", step], total=32)
        ids = [allocation.prompt_ids[position] for position in allocation.repeat_index]
        successes = [float(i % 8 < i // 8 * 2) for i in range(32)]
        seen += [allocation.budgets.tolist(), allocator.weigh(allocation.prompt_ids, ids, successes).tolist()]
        allocator.observe(ids, successes)
    return seen


@pytest.mark.parametrize("mode", WEIGHING)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_resume_equals_no_interruption(name: str, mode: str) -> None:
    straight, resumed = make(name, mode), make(name, mode)
    play(straight, first=1)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert play(resumed, first=4) == play(straight, first=4)
    assert resumed.state_dict() == straight.state_dict()


def test_a_changed_mode_is_used_with_a_warning() -> None:
    uneven, even = make("coba", "rollouts"), make("coba", "weights")
    play(even, first=1)
    with pytest.warns(UserWarning, match="changed allocation options .*mode: 'weights' → 'rollouts'"):
        uneven.load_state_dict(even.state_dict())
    assert uneven.weigh(["a"], ["a"], [1.0]).tolist() == [1.0]
