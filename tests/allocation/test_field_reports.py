"""Behaviours that public reports from people who run GRPO show going wrong elsewhere.

Each test is named after the behaviour; its docstring says where the fault was seen.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from coba_rl import STRATEGIES, BudgetAllocator

NAMES = sorted(STRATEGIES)


def make(name: str = "coba", **options: Any) -> BudgetAllocator:
    allocator = BudgetAllocator(name, **options)
    allocator.begin(10)
    return allocator


def outcome(successes: list[list[float]], **options: Any) -> dict[str, float]:
    """Metrics after groups with the given successes."""
    allocator = make(**options)
    ids = [f"p{i}" for i, group in enumerate(successes) for _ in group]
    allocator.observe(ids, [score for group in successes for score in group])
    return allocator.metrics()


# Uneven or incomplete groups


def test_each_prompt_has_its_own_number_of_rollouts() -> None:
    """verl #4585 wants `rollout.n` per prompt."""
    allocator = make("knapsack", bounds=(2, 30))
    allocator.observe(["easy"] * 4 + ["mid"] * 4 + ["hard"] * 8, [1] * 4 + [1, 0] * 2 + [1] + [0] * 7)
    allocation = allocator.allocate(["easy", "mid", "hard"], total=32)
    assert len(set(allocation.budgets.tolist())) == 3
    assert np.bincount(allocation.repeat_index).tolist() == allocation.budgets.tolist()


def test_statistics_come_from_the_rollouts_that_came_back() -> None:
    """unsloth #3626: fewer come back than asked; verl #2881: n² come back."""
    for returned in (1, 3, 4, 64):
        allocator = make("coba-paper")
        allocator.allocate(["a", "b"], total=16)
        allocator.observe(["a"] * returned, [1.0] * returned)
        assert allocator.strategy.pass_rates(["a"]).tolist() == [1.0]
        assert not allocator.strategy.seen(["b"])[0]


def test_interleaved_rollouts_stay_with_their_prompts() -> None:
    """slime #1414, AReaL #1419: groups cut by a fixed stride; TRL #4531: the wrong prompts repeated."""
    rng = np.random.default_rng(0)
    ids = np.repeat([f"p{i}" for i in range(8)], [1, 2, 3, 4, 5, 6, 7, 8])
    scores = rng.random(len(ids))
    order = rng.permutation(len(ids))
    allocator = make("coba-paper")
    allocator.observe(ids[order], scores[order])
    expected = [scores[ids == f"p{i}"].mean() for i in range(8)]
    assert allocator.strategy.pass_rates([f"p{i}" for i in range(8)]) == pytest.approx(expected)


def test_a_group_of_one_counts_and_is_dead() -> None:
    """ms-swift #3980: a group of one gives an obscure error."""
    assert outcome([[0.7]])["coba/dead_groups"] == 1.0
    allocator = make("coba", bounds=(1, 4))
    assert allocator.allocate(["a", "b"], total=2).budgets.tolist() == [1, 1]
    assert allocator.metrics()["coba/expected_dead_groups"] == pytest.approx(1.0)


# Dead groups and waste


def test_a_batch_in_which_nothing_passes_is_a_batch_like_any_other() -> None:
    """DAPO #22, verl #953: a crash when nothing in the batch passes."""
    for name in NAMES:
        for score in (0.0, 1.0):
            allocator = make(name)
            for _ in range(3):
                allocation = allocator.allocate(range(6), total=96)
                allocator.observe(allocation.repeat_index, [score] * 96)
                assert allocation.total == 96
            assert allocator.metrics()["coba/dead_groups"] == 1.0


def test_dead_groups_are_judged_on_success_and_not_on_a_shaped_reward() -> None:
    """NeMo-RL #2431: shaped rewards let all-wrong groups through."""
    shaped = [[0.1, 0.2, 0.05, 0.15], [1.1, 0.1, 1.0, 0.2]]
    metrics = outcome(shaped, success_threshold=1.0)
    assert metrics["coba/dead_groups"] == 0.5
    assert metrics["coba/dead_groups_all_wrong"] == 0.5


def test_a_constant_group_is_dead_whatever_the_constant() -> None:
    """OpenRLHF #1270: only the mean is tested, so constant groups that are not 0 or 1 survive."""
    assert outcome([[0.35] * 8, [0.0] * 4, [1.0] * 4, [0.3, 0.4]])["coba/dead_groups"] == 0.75


def test_float_noise_does_not_bring_a_group_to_life() -> None:
    """SkyRL #1801: an exact comparison misses float noise."""
    noisy = [0.35 + 1e-9 * i for i in range(8)]
    assert outcome([noisy, [0.35, 0.36]])["coba/dead_groups"] == 0.5


def test_the_expected_share_of_dead_groups_is_known_before_the_rollouts() -> None:
    """CoursIA #10603: two rollouts at p = 0.18 leave 70 % of the groups dead."""
    allocator = make("uniform")
    allocator.allocate(range(10), total=20, pass_rates=np.full(10, 0.18))
    assert allocator.metrics()["coba/expected_dead_groups"] == pytest.approx(0.18**2 + 0.82**2)
    assert allocator.metrics()["coba/expected_dead_groups"] == pytest.approx(0.70, abs=0.01)


# Rewards and pass rates


def test_nearly_right_is_not_the_same_as_wrong() -> None:
    """prime-rl #3566: "solved" means a reward of exactly 1.0, so 0.95 and 0.05 look alike."""
    graded, chosen = make("coba-paper"), make("coba-paper", success_threshold=0.9)
    for allocator in (graded, chosen):
        allocator.observe(["good", "good", "bad", "bad"], [0.95, 0.95, 0.05, 0.05])
    assert graded.strategy.pass_rates(["good", "bad"]) == pytest.approx([0.95, 0.05])
    assert chosen.strategy.pass_rates(["good", "bad"]).tolist() == [1.0, 0.0]


def test_a_missing_reward_is_neither_pass_nor_failure() -> None:
    """TRL #5902, #5126: None and NaN become 0."""
    allocator = make("coba-paper")
    allocator.observe(["a"] * 4, [1.0, None, math.nan, None])
    assert allocator.strategy.pass_rates(["a"]).tolist() == [1.0]


@pytest.mark.parametrize("name", NAMES)
def test_one_nan_does_not_spread(name: str) -> None:
    """ms-swift #8123: one NaN makes the batch NaN, silently."""
    allocator = make(name)
    allocation = allocator.allocate(range(4), total=64)
    scores = np.linspace(0.0, 1.0, 64)
    scores[7] = math.nan
    allocator.observe(allocation.repeat_index, scores)
    assert allocator.metrics()["coba/unjudged_rollouts"] == 1.0
    assert np.isfinite(allocator.strategy.pass_rates(range(4))).all()
    assert allocator.allocate(range(4), total=64).total == 64
    assert all(math.isfinite(value) for value in allocator.metrics().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_always_fails_is_seen(name: str) -> None:
    """prime-rl #3266: prompts that always fail stay "unseen"."""
    allocator = make(name)
    allocator.allocate(["a", "b"], total=16)
    allocator.observe(["a"] * 8, [0.0] * 8)
    assert allocator.strategy.seen(["a", "b"]).tolist() == [True, False]
    assert allocator.strategy.pass_rates(["a"])[0] < 0.05
    allocator.allocate(["a", "b"], total=16)
    assert allocator.metrics()["coba/unseen_prompts"] == 1.0


def test_two_rows_of_one_prompt_share_one_history() -> None:
    """prime-rl #3261, #1451: duplicate prompts share or lose their history by accident."""
    allocator = make("coba-paper", estimator={"name": "window", "visits": 2})
    allocation = allocator.allocate(["a", "b", "a"], total=24)
    allocator.observe([allocation.prompt_ids[i] for i in allocation.repeat_index], [1.0] * 8 + [0.0] * 16)
    assert allocator.strategy.pass_rates(["a", "b", "a"]).tolist() == [0.5, 0.0, 0.5]
    allocator.observe(["a"] * 16, [1.0] * 16)  # the second visit, not the third
    assert allocator.strategy.pass_rates(["a"]).tolist() == [0.75]


def test_two_lucky_rollouts_do_not_make_a_prompt_solved() -> None:
    """With one visit of two rollouts a prompt of p = 0.9 reads 1.0 four times in five, and starves."""
    allocator = make("coba")
    allocator.observe(["lucky"] * 2 + ["mid"] * 8, [1.0] * 2 + [1.0, 0.0] * 4)
    assert allocator.strategy.pass_rates(["lucky"])[0] < 0.9
    stuck = make("coba-release")
    stuck.observe(["lucky"] * 2 + ["mid"] * 8, [1.0] * 2 + [1.0, 0.0] * 4)
    assert stuck.strategy.pass_rates(["lucky"])[0] == 1.0


# Resume


@pytest.mark.parametrize("name", NAMES)
def test_difficulty_and_capability_are_in_the_checkpoint(name: str) -> None:
    """prime-rl #748: difficulty is lost at a restart; Reasoning360 #153: so is a random generator."""
    allocator, resumed = make(name, bounds=(2, 40)), make(name, bounds=(2, 40))
    allocation = allocator.allocate(range(8), total=128)
    allocator.observe(allocation.repeat_index, np.linspace(0.0, 1.0, 128).round())
    resumed.load_state_dict(json.loads(json.dumps(allocator.state_dict())))
    known = allocator.strategy.pass_rates(range(8)).tolist()
    assert resumed.strategy.pass_rates(range(8)).tolist() == known
    assert resumed.strategy.capability.failure_rate == allocator.strategy.capability.failure_rate
    assert resumed.allocate(range(8), 128).as_dict() == allocator.allocate(range(8), 128).as_dict()


def test_reordering_or_growing_the_data_set_keeps_every_history() -> None:
    """NeMo-RL #2519: the data set changed between two runs and histories went to other prompts."""
    allocator, resumed = make("coba-paper"), make("coba-paper")
    allocator.observe(
        [f"p{i}" for i in range(5) for _ in range(4)], [float(n < i) for i in range(5) for n in range(4)]
    )
    resumed.load_state_dict(json.loads(json.dumps(allocator.state_dict())))
    changed = ["p3", "new", "p0", "p4", "p1"]
    rates = resumed.allocate(changed, total=80).pass_rates
    assert rates[[0, 2, 3, 4]].tolist() == [0.75, 0.0, 1.0, 0.25]
    assert math.isnan(rates[1])
    assert resumed.metrics()["coba/unseen_prompts"] == 1.0


def test_another_group_size_at_resume_is_said_aloud() -> None:
    """NeMo-RL #3665: the group size changed at a resume and the baseline was silently wrong."""
    saved = make(bounds=(2, 128)).state_dict()
    with pytest.warns(UserWarning, match=r"bounds: \[2, 128\] → \[4, 64\]"):
        make(bounds=(4, 64)).load_state_dict(saved)


# Several processes


@pytest.mark.parametrize("name", NAMES)
def test_the_total_never_changes_and_no_group_is_empty(name: str) -> None:
    """verl #473, #3933, #5228, #6786: uneven chunks, shrinking batches and ranks without a sequence."""
    rng = np.random.default_rng(1)
    allocator = make(name, bounds=(1, 64))
    for _ in range(6):
        ids = rng.integers(0, 40, size=16)
        allocation = allocator.allocate(ids, total=256)
        assert allocation.total == len(allocation.repeat_index) == 256
        assert allocation.budgets.min() >= 1
        rollouts = ids[allocation.repeat_index]
        allocator.observe(rollouts, (rng.random(256) < rollouts / 40).astype(float))


def test_a_total_that_does_not_fit_says_what_to_set() -> None:
    """TRL #3061: why must the batch divide by the group size?"""
    with pytest.raises(ValueError, match="raise the total to 16, lower min_budget, or take fewer prompts"):
        make(bounds=(2, 8)).allocate(range(8), total=15)
