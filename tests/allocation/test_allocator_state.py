"""Saving and resuming an allocator: complete, exact, and refused when it does not fit."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any

import numpy as np
import pytest

from coba_rl import STRATEGIES, BudgetAllocator, StateError


def make(name: str = "coba", **options: Any) -> BudgetAllocator:
    if name == "coba":
        options = {"estimator": "drift", **options}
    allocator = BudgetAllocator(name, bounds=(2, 32), **options)
    allocator.begin(8)
    return allocator


def play(allocator: BudgetAllocator, seed: int, steps: int = 4) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    given = []
    for _ in range(steps):
        ids = [f"p{i}" if i % 2 else int(i) for i in rng.permutation(30)[:12]]  # text and integer ids
        allocation = allocator.allocate(ids, total=12 * 16 + 1)
        rollouts = [ids[i] for i in allocation.repeat_index]
        allocator.observe(rollouts, rng.random(len(rollouts)))
        given.append(allocation.budgets.tolist())
    return given


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state, allow_nan=False))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_resume_equals_no_interruption(name: str, steps: int) -> None:
    uninterrupted, resumed = make(name), make(name)
    play(uninterrupted, seed=steps, steps=steps)
    resumed.load_state_dict(through_json(uninterrupted.state_dict()))
    assert resumed.metrics() == uninterrupted.metrics()
    assert play(resumed, seed=9) == play(uninterrupted, seed=9)
    assert resumed.metrics() == uninterrupted.metrics()
    assert resumed.state_dict() == uninterrupted.state_dict()


def test_a_state_replaces_what_was_learned_before() -> None:
    saved, used = make(), make()
    play(saved, seed=1)
    play(used, seed=2)
    used.load_state_dict(through_json(saved.state_dict()))
    assert used.state_dict() == saved.state_dict()


def _without(path: str) -> Any:
    def damage(state: dict[str, Any]) -> None:
        *parents, key = path.split(".")
        for parent in parents:
            state = state[parent]
        del state[key]

    return damage


def _with(path: str, value: Any) -> Any:
    def damage(state: dict[str, Any]) -> None:
        *parents, key = path.split(".")
        for parent in parents:
            state = state[parent]
        state[key] = value

    return damage


TABLE = "prompts"
DAMAGES = {
    "no version": _without("version"),
    "newer version": _with("version", 99),
    "another strategy": _with("strategy", "uniform"),
    "no strategy state": _without("strategy_state"),
    "strategy state of another kind": _with("strategy_state", [1, 2]),
    "no step": _without("step"),
    "step is text": _with("step", "three"),
    "options are a list": _with("options", ["kappa"]),
    "no metrics": _without("allocation_metrics"),
    "metrics are a number": _with("outcome_metrics", 3),
    "no capability": _without("strategy_state.capability"),
    "capability is text": _with("strategy_state.capability.recent", "abc"),
    "capability is a number": _with("strategy_state.capability.recent", 0.5),
    "no τ": _without("strategy_state.tau"),
    "τ is null": _with("strategy_state.tau", None),
    "no table": _without(TABLE),
    "no hashes": _without(f"{TABLE}.keys"),
    "a hash too few": lambda state: state["prompts"]["keys"].pop(),
    "a hash twice": lambda state: state["prompts"]["keys"].__setitem__(0, state["prompts"]["keys"][-1]),
    "a hash of another kind": lambda state: state["prompts"]["keys"].__setitem__(0, 0.5),
    "a hash too large": lambda state: state["prompts"]["keys"].__setitem__(0, 1 << 64),
    "a hash below zero": lambda state: state["prompts"]["keys"].__setitem__(0, -1),
    "a column too few": _without(f"{TABLE}.columns.attempts"),
    "a column too many": _with(f"{TABLE}.columns.extra", []),
    "a column cut short": lambda state: state["prompts"]["columns"]["attempts"].pop(),
    "a column of lists": lambda state: _with(
        f"{TABLE}.columns.attempts", [[1.0] for _ in state["prompts"]["keys"]]
    )(state),
    "a column of nulls": lambda state: _with(
        f"{TABLE}.columns.attempts", [None for _ in state["prompts"]["keys"]]
    )(state),
    "no drift": _without("strategy_state.estimator.recent"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Resuming with changed allocation options")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage: Any) -> None:
    saved, allocator, twin = make(), make(), make()
    play(saved, seed=1)
    for one in (allocator, twin):
        play(one, seed=2)
    state = through_json(saved.state_dict())
    damage(state)
    before = allocator.state_dict()
    with pytest.raises(StateError):
        allocator.load_state_dict(state)
    assert allocator.state_dict() == before
    assert play(allocator, seed=3) == play(twin, seed=3)


@pytest.mark.parametrize("state", [None, [], "state", 3, {}])
def test_something_else_than_a_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="without a version"):
        make().load_state_dict(state)


def test_messages_of_refused_states() -> None:
    state = through_json(make("knapsack").state_dict())
    with pytest.raises(StateError, match="saved by strategy 'knapsack', this run uses 'coba'"):
        make("coba").load_state_dict(state)
    with pytest.raises(StateError, match="version 99, this coba-rl reads version 2"):
        make("knapsack").load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match=r"damaged.*Use another checkpoint"):
        make("knapsack").load_state_dict({**state, "strategy_state": None})


@pytest.mark.parametrize(
    ("saved", "now", "listed"),
    [
        ({"kappa": 11.0}, {"kappa": 15.0}, "kappa: 11.0 → 15.0"),
        ({}, {"success_threshold": 0.5}, "success_threshold: None → 0.5"),
        (
            {"estimator": "posterior"},
            {"estimator": {"name": "posterior", "prior": [1.0, 1.0]}},
            r"estimator: {.*'prior': \[0.5, 0.5\], .*} → {.*'prior': \[1.0, 1.0\], .*}",
        ),
        ({"window": 5}, {"window": 2}, "window: 5 → 2"),
    ],
)
def test_changed_options_are_used_with_a_warning(saved: dict, now: dict, listed: str) -> None:
    old, new = make(**saved), make(**now)
    play(old, seed=1)
    with pytest.warns(UserWarning, match=f"changed allocation options.*{listed}"):
        new.load_state_dict(through_json(old.state_dict()))
    for option, value in now.items():
        owner = new if option == "success_threshold" else new.strategy
        assert getattr(owner, option) == value
    play(new, seed=2)


def test_changed_bounds_are_used_with_a_warning() -> None:
    old, new = BudgetAllocator(bounds=(2, 32)), BudgetAllocator(bounds=(4, 8))
    play(old, seed=1)
    with pytest.warns(UserWarning, match=r"bounds: \[2, 32\] → \[4, 8\]") as caught:
        new.load_state_dict(old.state_dict())
    assert caught[0].filename == __file__  # points at the caller
    assert set(new.allocate(["a", "b"], total=12).budgets.tolist()) == {6}


def test_unchanged_options_load_in_silence() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"estimator": {"name": "drift", "prior": (1.0, 2.0)}},
        {"success_threshold": 0.5, "tau": 0.3},
    ]
    for options in changes:
        saved, resumed = make(**options), make(**options)
        play(saved, seed=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed.load_state_dict(through_json(saved.state_dict()))


def test_another_estimator_is_refused_with_advice() -> None:
    old, new = (make("knapsack", estimator={"name": "window", "visits": visits}) for visits in (1, 3))
    play(old, seed=1)
    before = new.state_dict()
    with (
        pytest.warns(UserWarning, match="'visits': 1} → .*'visits': 3}"),
        pytest.raises(StateError, match="Resume with the estimator and options of the saved run"),
    ):
        new.load_state_dict(old.state_dict())
    assert new.state_dict() == before


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_saving_and_loading_copy(name: str) -> None:
    allocator, other = make(name), make(name)
    play(allocator, seed=1)
    state = allocator.state_dict()
    untouched = copy.deepcopy(state)
    other.load_state_dict(state)
    play(allocator, seed=2)
    play(other, seed=3)
    assert state == untouched


def test_a_preview_is_the_coming_allocation_and_leaves_no_trace() -> None:
    allocator = make("linear-decay")
    play(allocator, seed=1)
    before, metrics = allocator.state_dict(), allocator.metrics()
    previewed = allocator.preview(["p1", 2, "new"], total=40).budgets.tolist()
    assert allocator.state_dict() == before
    assert allocator.metrics() == metrics
    assert allocator.allocate(["p1", 2, "new"], total=40).budgets.tolist() == previewed
    with pytest.raises(ValueError, match="total=1 rollouts"):
        allocator.preview(["a", "b"], total=1)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_arrays_hold_the_same_state(name: str) -> None:
    saved, from_lists, from_arrays = make(name), make(name), make(name)
    play(saved, seed=1)
    from_lists.load_state_dict(saved.state_dict())
    from_arrays.load_state_dict(copy.deepcopy(saved.state_dict(arrays=True)))
    assert from_arrays.state_dict() == from_lists.state_dict() == saved.state_dict()
    assert play(from_arrays, seed=2) == play(from_lists, seed=2)
