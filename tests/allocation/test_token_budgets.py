"""The budget unit `tokens`, from configuration to resume."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator, InfeasibleBudgetError, OptionError
from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.errors import StateError

LIMITED = sorted(name for name in STRATEGIES if "tokens" in STRATEGIES[name].budget_units)
NUM, MEAN = 24, 8


def make(strategy: str = "coba", *, budget_unit: str = "tokens", **options: Any) -> BudgetAllocator:
    allocator = BudgetAllocator(strategy, bounds=(2, 32), budget_unit=budget_unit, **options)
    allocator.begin(20)
    return allocator


def play(allocator: BudgetAllocator, num_steps: int = 4, first: int = 0) -> list[list[int]]:
    """Steps of half of the prompts; hard ones write longer."""
    budgets = []
    for step in range(first, first + num_steps):
        ids = [i for i in range(NUM) if (i + step) % 2]
        allocation = allocator.allocate(ids, MEAN * len(ids))
        if allocation.is_pilot:
            allocation = allocator.allocate_rest([float(i % 3 == 0) for i in allocation.repeat_index])
        observe(allocator, ids, allocation.budgets, step)
        budgets.append(allocation.budgets.tolist())
    return budgets


def observe(allocator: BudgetAllocator, ids: list[int], budgets: np.ndarray, step: int) -> None:
    rng = np.random.default_rng(step)
    id_R = np.repeat(ids, budgets)
    index_R = np.concatenate([np.arange(budget) for budget in budgets])
    success_R = (rng.random(len(id_R)) * NUM < id_R).astype(float)
    length_R = np.round((900 - 30 * id_R - 100 * success_R) * rng.uniform(0.8, 1.2, len(id_R)))
    allocator.observe(id_R, success_R, index_R < max(allocator.pilot, 2), lengths=length_R)


def even_tokens(allocator: BudgetAllocator, ids: list[int], total: int) -> float:
    return total / len(ids) * float(allocator.expected_tokens(ids).sum())


@pytest.mark.parametrize("name", LIMITED)
@given(
    total=st.integers(2 * NUM, 32 * NUM),
    rates=st.lists(st.none() | st.floats(0, 1), min_size=NUM, max_size=NUM),
)
def test_budgets_keep_the_total_and_the_tokens_of_even_ones(
    name: str, total: int, rates: list[float | None]
) -> None:
    allocator, free = make(name), make(name, budget_unit="rollouts")
    play(allocator)
    p_P = np.array([np.nan if rate is None else rate for rate in rates])
    ids = [*range(NUM)]
    expected = allocator.expected_tokens(ids, p_P)
    limit = total / NUM * float(expected.sum())
    budgets = allocator.allocate(ids, total, p_P).budgets
    assert budgets.sum() == total
    assert (budgets >= 2).all()
    assert (budgets <= 32).all()
    assert (budgets * expected).sum() <= limit * (1 + 1e-9)
    assert allocator.metrics()["coba/expected_tokens"] == pytest.approx(float((budgets * expected).sum()))
    assert total % NUM or name != "uniform" or len(set(budgets.tolist())) == 1
    free.strategy.load_state_dict(copy.deepcopy(allocator.strategy.state_dict()))
    if name != "linear-decay":  # whose steps have been counted on
        plain = free.allocate(ids, total, p_P).budgets
        if (plain * expected).sum() <= limit:
            assert budgets.tolist() == plain.tolist()


@pytest.mark.parametrize("name", LIMITED)
def test_tokens_in_place_of_a_total(name: str) -> None:
    allocator = make(name)
    play(allocator)
    ids = [*range(NUM)]
    cost_P = allocator.expected_tokens(ids)
    for mean in (2.0, 3.3, 8.0, 20.0, 31.9):
        tokens = mean * float(cost_P.sum())
        budgets = allocator.allocate(ids, tokens=tokens).budgets
        assert (budgets >= 2).all()
        assert (budgets <= 32).all()
        spent = float((budgets * cost_P).sum())
        assert tokens - float(cost_P.max()) < spent <= tokens * (1 + 1e-9)
    assert allocator.allocate(ids, tokens=1e9).budgets.tolist() == [32] * NUM
    with pytest.raises(InfeasibleBudgetError, match="expected a number of at least"):
        allocator.allocate(ids, tokens=1.9 * float(cost_P.sum()))


def test_the_gain_decides_where_the_tokens_are_equal_and_the_tokens_where_the_gain_is() -> None:
    allocator = make("variance")
    ids = ["short", "long"]
    allocator.observe(ids * 8, [1.0, 0.0] * 4 + [0.0, 1.0] * 4, lengths=[100.0, 400.0] * 8)
    short, long = allocator.expected_tokens(ids)
    assert short < 0.5 * long
    assert allocator.allocate(ids, 16).budgets.tolist() == [
        8,
        8,
    ]  # equal gains: even budgets are best and fit
    more, fewer = allocator.allocate(ids, tokens=8 * (short + long)).budgets
    assert more > 8 > fewer
    assert more / fewer == pytest.approx(np.sqrt(long / short), rel=0.15)  # p(1−p)/(B(B+1)) per token


def test_before_a_length_is_known_tokens_are_rollouts() -> None:
    allocator, free = make("static-explore"), make("static-explore", budget_unit="rollouts")
    p_P = np.linspace(0.05, 0.95, NUM)
    ids = [*range(NUM)]
    assert np.isnan(allocator.expected_tokens(ids)).all()
    budgets = [each.allocate(ids, MEAN * NUM, p_P).budgets.tolist() for each in (allocator, free)]
    assert budgets[0] == budgets[1]
    assert "coba/expected_tokens" not in allocator.metrics()
    with pytest.raises(
        InfeasibleBudgetError, match=r"no length has been observed yet.*Give the first step a total"
    ):
        allocator.allocate(ids, tokens=1000.0)


def test_a_pilot_within_tokens() -> None:
    allocator = make("coba", pilot=4)
    play(allocator)
    ids = [*range(NUM)]
    tokens = even_tokens(allocator, ids, MEAN * NUM)
    first = allocator.allocate(ids, tokens=tokens)
    assert first.budgets.tolist() == [4] * NUM
    assert first.remaining > 0
    whole = allocator.allocate_rest([float(i % 2) for i in first.repeat_index])
    assert (whole.budgets >= 4).all()
    assert (whole.budgets * allocator.expected_tokens(ids, whole.pass_rates)).sum() <= tokens * (1 + 1e-9)


@pytest.mark.parametrize("pilot", [0, 3])
def test_resume_goes_on_bit_for_bit(pilot: int) -> None:
    straight = make(pilot=pilot)
    play(straight)
    for state in (
        json.loads(json.dumps(straight.state_dict(), allow_nan=False)),
        copy.deepcopy(straight.state_dict(arrays=True)),
    ):
        resumed, on = make(pilot=pilot), copy.deepcopy(straight)
        resumed.load_state_dict(state)
        assert play(resumed, 3, first=4) == play(on, 3, first=4)
        assert resumed.state_dict() == on.state_dict()
    broken = {**straight.state_dict(), "lengths": {"level": [1.0]}}
    before = straight.state_dict()
    with pytest.raises(StateError):
        straight.load_state_dict(broken)
    assert straight.state_dict() == before


def test_a_changed_unit_is_warned_of() -> None:
    allocator = make(budget_unit="rollouts")
    with pytest.warns(UserWarning, match="budget_unit: 'tokens' → 'rollouts'"):
        allocator.load_state_dict(make().state_dict())


def test_metrics_of_lengths() -> None:
    allocator = make("uniform")
    allocator.observe(["a", "a", "b"], [1.0, 0.0, np.nan], lengths=[10, 20, 30])
    assert allocator.metrics()["coba/tokens"] == 60.0
    assert "coba/length_error" not in allocator.metrics()
    right, wrong = (allocator.expected_tokens(["a"], np.array([p]))[0] for p in (1.0, 0.0))
    allocator.observe(["a", "a"], [1.0, 0.0], lengths=[2 * right, 2 * wrong])
    assert allocator.metrics()["coba/length_error"] == pytest.approx(1.0)
    free = make("uniform", budget_unit="rollouts")
    free.observe(["a", "a"], [1.0, 0.0], lengths=[7, 8])
    assert free.metrics()["coba/tokens"] == 15.0
    assert not free.state_dict()["lengths"]["prompts"]["keys"]


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        (None, "None"),
        ([1.0], r"shape \(1,\)"),
        ([1.0, np.nan], "nan"),
        ([-1.0, 1.0], "-1.0"),
        ([1.0, np.inf], "inf"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths: Any, found: str) -> None:
    allocator = make()
    before = allocator.state_dict()
    with pytest.raises(
        ValueError, match=rf"lengths: .*{found}.*; expected the generated tokens.* of 2 rollouts"
    ):
        allocator.observe(["a", "b"], [1.0, 0.0], lengths=lengths)
    assert allocator.state_dict() == before


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"budget_unit": "token"}, "budget_unit='token': expected one of 'rollouts', 'tokens'"),
        ({"budget_unit": "tokens", "mode": "weights"}, "nothing to limit"),
        ({"budget_unit": "tokens", "strategy": "gvm"}, "'gvm' has no gains"),
        ({"budget_unit": "tokens", "strategy": "coba-release"}, "'coba-release' has no gains"),
    ],
)
def test_what_does_not_go_together_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AllocatorSpec.from_mapping(section).build()


def test_one_of_total_and_tokens() -> None:
    with pytest.raises(TypeError, match="total=8 beside tokens"):
        make().allocate(["a"], 8, tokens=100.0)
    with pytest.raises(OptionError, match="budget_unit='rollouts'"):
        make(budget_unit="rollouts").allocate(["a"], tokens=100.0)
    with pytest.raises(TypeError, match="total=None"):
        make().allocate(["a"])


def test_an_empty_batch() -> None:
    allocator = make()
    play(allocator)
    assert allocator.allocate([], 0).budgets.tolist() == []
    assert allocator.allocate([], tokens=0.0).budgets.tolist() == []
    assert allocator.preview([], 0).budgets.tolist() == []
