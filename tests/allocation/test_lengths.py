"""The expected lengths: what they learn, what they withstand, and how they are saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.allocation.lengths import LengthModel
from coba_rl.errors import StateError

HALF = 0.5


def visit(
    model: LengthModel,
    ids: list[int],
    right_P: np.ndarray,
    wrong_P: np.ndarray,
    p_P: np.ndarray,
    seed: int = 0,
) -> float | None:
    """One step of 8 rollouts a prompt, with lengths a quarter around their means."""
    rng = np.random.default_rng(seed)
    group_R = np.repeat(np.arange(len(ids)), 8)
    success_R = (rng.random(len(group_R)) < p_P[group_R]).astype(float)
    mean_R = np.where(success_R == 1.0, right_P[group_R], wrong_P[group_R])
    return model.update(ids, group_R, success_R, np.round(mean_R * rng.uniform(0.75, 1.25, len(group_R))))


def test_each_prompt_and_outcome_has_its_own_length() -> None:
    rng = np.random.default_rng(1)
    right_P, wrong_P, p_P = rng.uniform(50, 400, 64), rng.uniform(300, 900, 64), rng.uniform(0.2, 0.8, 64)
    model, ids = LengthModel(), [*range(64)]
    errors = [visit(model, ids, right_P, wrong_P, p_P, seed) for seed in range(6)]
    assert errors[0] is None
    assert max(errors[1:]) < 0.15  # type: ignore[type-var]
    assert (
        np.mean(np.abs(right_P.mean() / right_P - 1.0)) > 0.5
    )  # the error of a length that all have in common
    for p, mean_P in ((1.0, right_P), (0.0, wrong_P)):
        np.testing.assert_allclose(model.cost(ids, np.full(64, p)), mean_P, rtol=0.5)
        assert np.corrcoef(model.cost(ids, np.full(64, p)), mean_P)[0, 1] > 0.95
    unseen = model.cost(["new"], np.array([HALF]))[0]
    assert unseen == pytest.approx(HALF * (right_P.mean() + wrong_P.mean()), rel=0.1)


def test_lengths_of_prompts_not_visited_grow_with_those_that_are() -> None:
    p_P, model = np.full(32, HALF), LengthModel()
    batches = [[*range(start, start + 32)] for start in range(0, 160, 32)]
    for step in range(45):  # the last batch comes once, the others in turn
        mean_P = np.full(32, 200.0 * 1.05**step)
        visit(model, batches[step] if step < 5 else batches[step % 4], mean_P, mean_P, p_P, step)
    now = 200.0 * 1.05**44
    assert model.cost(batches[4], p_P) == pytest.approx(now, rel=0.25)
    assert model.cost(batches[4], p_P).mean() == pytest.approx(now, rel=0.1)
    assert model.cost(["new"], np.array([HALF])) == pytest.approx(now, rel=0.15)


def test_longer_prompts_in_a_batch_are_no_growth() -> None:
    p_P = np.full(32, HALF)
    model = LengthModel()
    for seed, (ids, mean) in enumerate([(range(32), 100.0), (range(32, 64), 500.0)] * 4):
        visit(model, [*ids], np.full(32, mean), np.full(32, mean), p_P, seed)
    assert model.state_dict()["level"] == pytest.approx([1.0, 1.0], abs=0.1)
    assert model.cost([*range(32)], p_P) == pytest.approx(100.0, rel=0.4)


def test_one_outcome_stands_for_another_that_never_came() -> None:
    model = LengthModel()
    model.update(["a"], np.zeros(4, int), np.zeros(4), np.full(4, 300.0))
    assert model.cost(["a"], np.array([1.0])) == pytest.approx(300.0)
    assert model.cost(["new"], np.array([0.3])) == pytest.approx(300.0)


def test_graded_success_is_shared_out() -> None:
    """Half right of 100 and half wrong of 100 tells of either what one rollout of each would, at half the weight."""
    graded, binary = LengthModel(), LengthModel()
    graded.update(["a"], np.zeros(4, int), np.full(4, 0.5), np.full(4, 100.0))
    binary.update(["a"], np.zeros(4, int), np.array([1.0, 1.0, 0.0, 0.0]), np.full(4, 100.0))
    for name in ("right_rollouts", "right_tokens", "wrong_rollouts", "wrong_tokens"):
        assert graded.table[name].tolist() == binary.table[name].tolist()


def test_a_runaway_completion_counts_as_ten() -> None:
    tame, wild = LengthModel(), LengthModel()
    for model, last in ((tame, 1000.0), (wild, 1e9)):
        for _ in range(2):
            model.update(["a", "b"], np.array([0, 0, 1]), np.ones(3), np.array([100.0, 100.0, 100.0]))
        model.update(["a"], np.zeros(1, int), np.ones(1), np.array([last]))
    assert wild.state_dict() == tame.state_dict()


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 5), st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 7.0, 1e6, 1e300])),
            min_size=1,
            max_size=12,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_comes_costs_stay_positive_and_the_state_goes_on_bit_for_bit(
    steps: list[list[tuple[int, float, float]]],
) -> None:
    models = [LengthModel(), LengthModel()]
    for step in steps:
        ids = sorted({prompt for prompt, _, _ in step})
        group_R = np.array([ids.index(prompt) for prompt, _, _ in step])
        success_R, length_R = (np.array(column) for column in list(zip(*step, strict=True))[1:])
        errors = [model.update(ids, group_R, success_R, length_R) for model in models]
        assert errors[0] == errors[1]
        assert errors[0] is None or np.isfinite(errors[0])
        arrays, text = models[0].state_dict(arrays=True), json.dumps(models[0].state_dict(), allow_nan=False)
        assert LengthModel.restored(arrays).state_dict() == models[0].state_dict()
        models[1] = LengthModel.restored(json.loads(text))
        cost_P = models[0].cost([*range(9)], np.linspace(0.0, 1.0, 9))
        assert (np.isfinite(cost_P) & (cost_P > 0.0)).all()
    assert models[0].state_dict() == models[1].state_dict()


def test_before_the_first_step_a_rollout_counts_as_one() -> None:
    assert LengthModel().cost(["a", "b"], np.array([0.1, 0.9])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("level", [1.0]), ("level", [0.0, 1.0]), ("centre", [-1.0, 1.0]), ("prompts_of_centre", [1e9, 0.0])],
)
def test_damaged_states_are_refused(key: str, value: list[float]) -> None:
    with pytest.raises(StateError, match=key):
        LengthModel.restored({**LengthModel().state_dict(), key: value})


def test_a_prompt_takes_54_bytes_at_most() -> None:
    model, sizes = LengthModel(), []
    for start in range(0, 60_000, 3000):
        model.update([*range(start, start + 3000)], np.arange(3000), np.ones(3000), np.full(3000, 9.0))
        sizes.append(model.table.nbytes / len(model.table))
    assert max(sizes[1:]) <= 54.0
