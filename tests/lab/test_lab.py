"""The lab's GRPO is GRPO: same gradient as TRL's loss, exact sampling, bit-for-bit repeatable."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.strategies import make_strategy
from coba_rl.config_file import validated
from coba_rl.errors import ConfigError, InfeasibleBudgetError, OptionError
from coba_rl.lab.config import LabConfig
from coba_rl.lab.grpo import advantages, surrogate, update
from coba_rl.lab.measures import mechanism
from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.lab.run import STREAMS, LabResult, LabRun, random_streams
from coba_rl.tasks.policy import build_tokenizer, policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

TASK = PrefixScan(regime="moderate")
SHORT = LabConfig(regime="moderate", steps=3, prompts_per_step=8, evaluate_every=3, learning_rate=1e-3)


@pytest.fixture(scope="module")
def policy() -> LabPolicy:
    return LabPolicy(policy_path("moderate"), TASK.max_completion_length)


def test_sampled_successes_follow_the_exact_pass_rates(policy: LabPolicy) -> None:
    problems = TASK.train_problems()[:24]
    rollouts = policy.read(problems).sample(np.full(24, 400), np.random.default_rng(0))
    assert np.bincount(rollouts.prompt_U, rollouts.count_U).tolist() == [400] * 24
    right = [
        policy.decode(c) == problems[i].answer
        for i, c in zip(rollouts.prompt_U, rollouts.completions, strict=True)
    ]
    rate = np.bincount(rollouts.prompt_U, rollouts.count_U * np.array(right), minlength=24) / 400
    exact = policy.pass_rates(problems)
    deviation = (rate - exact) / np.sqrt(np.maximum(exact * (1 - exact), 1e-3) / 400)
    assert np.abs(deviation).max() < 4.5
    assert np.sqrt(np.mean(deviation**2)) < 1.5


WEIGHTS = np.array([0.5, 1.5, 0.25, 1.75, 2.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize("weight_P", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("scale_rewards", [True, False])
def test_updates_are_those_of_every_rollout_on_its_own(
    weight_P: np.ndarray | None, scale_rewards: bool
) -> None:
    """Three optimiser steps on graded scores that reach the clip, against one row a rollout."""
    merged, plain = (LabPolicy(policy_path("moderate"), TASK.max_completion_length) for _ in range(2))
    problems = TASK.train_problems()[:8]
    rollouts = merged.read(problems).sample(np.array([2, 4, 8, 16, 3, 5, 7, 19]), np.random.default_rng(1))
    score_U = np.random.default_rng(2).integers(3, size=len(rollouts.completions)) / 2
    objective = surrogate(merged, problems, rollouts, score_U, weight_P, scale_rewards=scale_rewards)
    norm = update(merged, torch.optim.SGD(merged.model.parameters(), lr=0.3), objective, updates=3)
    rows = np.repeat(np.arange(len(rollouts.completions)), rollouts.count_U)
    group = rollouts.prompt_U[rows]
    advantage = _advantage_by_rollout(group, score_U[rows], scale_rewards)
    if weight_P is not None:
        advantage *= torch.from_numpy(weight_P)[group]
    texts = [(problems[i].prompt, rollouts.completions[row]) for i, row in zip(group, rows, strict=True)]
    assert norm == pytest.approx(_update_by_rollout(plain, texts, advantage[:, None]), rel=1e-5)
    for mine, other in zip(merged.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.linalg.vector_norm(mine - other) <= 1e-5 * torch.linalg.vector_norm(other)


def _update_by_rollout(policy: LabPolicy, texts: list, advantage: torch.Tensor) -> float:
    """Three steps on TRL's clipped token-mean loss; the mean gradient norm."""
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.3)
    norms, old, clipped = [], None, 0
    for _ in range(3):
        log_p, mask = _log_probabilities(policy, *zip(*texts, strict=True))
        old = log_p.detach() if old is None else old
        ratio = torch.exp(log_p - old)
        clipped += int((((ratio - 1).abs() > 0.2) & mask.bool()).sum())
        least = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        optimizer.zero_grad()
        (-(least * mask).sum() / mask.sum()).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)))
        optimizer.step()
    assert clipped > 50
    return float(np.mean(norms))


def _advantage_by_rollout(group: np.ndarray, score: np.ndarray, scale_rewards: bool) -> torch.Tensor:
    """From torch's own mean and standard deviation."""
    advantage = torch.zeros(len(score), dtype=torch.float64)
    for prompt in np.unique(group):
        values = torch.from_numpy(score[group == prompt])
        scale = values.std() + 1e-4 if scale_rewards else 1.0
        advantage[torch.from_numpy(group == prompt)] = (values - values.mean()) / scale
    return advantage


def _log_probabilities(
    policy: LabPolicy, prompts: list, completions: list[tuple[int, ...]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every token of every completion, one right-padded row each; and the mask of real tokens."""
    tokenizer = build_tokenizer()
    texts = [[*tokenizer(prompt).input_ids, *c] for prompt, c in zip(prompts, completions, strict=True)]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (text, completion) in enumerate(zip(texts, completions, strict=True)):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, len(text) - len(completion) : len(text)] = 1
    logits = policy.model(ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[:, :, 0], mask[:, 1:]


def test_dead_groups_have_no_advantage() -> None:
    rollouts = UniqueRollouts(
        np.array([0, 1, 1, 2, 2]), [(1,), (1,), (2,), (1,), (2,)], np.array([4, 1, 3, 5, 2])
    )
    advantage_U = advantages(rollouts, np.array([1.0, 1.0, 0.0, 0.3, 0.3]), num_prompts=3)
    assert advantage_U[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    assert advantage_U[1:3] == pytest.approx(np.array([0.75, -0.25]) / (0.5 + 1e-4))


@pytest.mark.parametrize("seed", range(3))
def test_advantages_of_graded_scores_are_torchs_mean_and_standard_deviation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, count_U = np.repeat([0, 2], 6), rng.integers(1, 5, size=12)
    rollouts = UniqueRollouts(group, [(i,) for i in range(12)], count_U)
    score_U = rng.random(12).round(1)
    found = advantages(rollouts, score_U, num_prompts=3)
    for prompt in (0, 2):
        here = group == prompt
        every = torch.from_numpy(np.repeat(score_U[here], count_U[here]))
        expected = (torch.from_numpy(score_U[here]) - every.mean()) / (every.std() + 1e-4)
        np.testing.assert_allclose(found[here], expected, rtol=1e-12)


def test_a_run_is_repeatable_bit_for_bit() -> None:
    first, second = LabRun(SHORT).run(), LabRun(SHORT).run()
    assert first.curve == second.curve
    assert first.steps == second.steps
    assert first.after == second.after


def run_with(**changes: Any) -> tuple[LabResult, list[Allocation]]:
    """A run in which half of the prompts come back, and its allocations."""
    config = SHORT.model_copy(update={"train_prompts": 16, "steps": 4, **changes})
    allocations: list[Allocation] = []
    return LabRun(config, on_step=lambda _, allocation: allocations.append(allocation)).run(), allocations


def test_two_rounds_spend_the_same_total_and_are_observed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given, told = [], []
    observe = BudgetAllocator.observe

    def listen(self: BudgetAllocator, ids: Any, successes: Any, in_pilot: Any, *, lengths: Any) -> None:
        told.append(Counter(prompt_id for prompt_id, first in zip(ids, in_pilot, strict=True) if first))
        assert len(ids) == len(successes) == len(lengths) == 8 * 16
        observe(self, ids, successes, in_pilot, lengths=lengths)

    monkeypatch.setattr(BudgetAllocator, "observe", listen)
    config = SHORT.model_copy(update={"pilot": 5})
    run, again = LabRun(config, lambda _, allocation: given.append(allocation)), LabRun(config)
    assert run.run().curve == again.run().curve
    for allocation, pilots in zip(given, told[:3], strict=True):
        assert pilots == dict.fromkeys(allocation.prompt_ids, 5)
        assert allocation.total == 8 * 16
        assert allocation.budgets.min() >= 5
        assert len({*allocation.budgets.tolist()}) > 1


def test_a_pilot_of_the_whole_step_is_a_step_of_even_budgets() -> None:
    whole, even = (SHORT.model_copy(update=update) for update in ({"pilot": 16}, {"strategy": "uniform"}))
    assert LabRun(whole).run().curve == LabRun(even).run().curve


def test_a_pilot_that_does_not_fit_is_refused_before_the_run() -> None:
    with pytest.raises(InfeasibleBudgetError, match="pilot of 17 for each of 8 prompts"):
        SHORT.model_copy(update={"pilot": 17}).make_allocator()


def test_weights_leave_the_rollouts_even() -> None:
    result, allocations = run_with(mode="weights")
    assert all(set(allocation.budgets.tolist()) == {16} for allocation in allocations)
    assert result.steps[-1]["coba/weight_max"] > 1.1
    uniform, _ = run_with(strategy="uniform")
    assert result.steps[0]["tokens"] == uniform.steps[0]["tokens"]  # the same rollouts while nothing is known
    assert result.final != uniform.final


def test_equal_weights_change_nothing() -> None:
    plain, _ = run_with(strategy="uniform")
    for changes in ({"mode": "weights"}, {"per_prompt_weighting": True}):
        weighed, _ = run_with(strategy="uniform", **changes)
        assert weighed.curve == plain.curve
        assert [step["grad_norm"] for step in weighed.steps] == [step["grad_norm"] for step in plain.steps]


def test_prompts_that_weigh_the_same_undo_their_budgets() -> None:
    result, allocations = run_with(per_prompt_weighting=True)
    plain, as_they_come = run_with()
    assert [a.budgets.tolist() for a in allocations[:3]] == [a.budgets.tolist() for a in as_they_come[:3]]
    assert np.ptp(allocations[2].budgets) > 0
    assert result.steps[2]["grad_norm"] != plain.steps[2]["grad_norm"]
    budgets = np.array([4, 8, 24])
    run = LabRun(SHORT.model_copy(update={"per_prompt_weighting": True}))
    rollouts = UniqueRollouts(np.arange(3), [(1,), (2,), (3,)], budgets)
    weights = run._weights(Allocation(["a", "b", "c"], budgets, np.full(3, np.nan)), rollouts, np.zeros(3))
    assert weights is not None
    assert (weights * budgets).tolist() == [12, 12, 12]


@pytest.mark.parametrize("other", [{"per_prompt_weighting": True}, {"min_value_share": 0.1}])
def test_weights_beside_other_weights_or_selection_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"mode='weights' with {next(iter(other))}="):
        LabConfig(mode="weights", **other).make_allocator()


@pytest.mark.parametrize("change", [{"scale_rewards": False}, {"updates_per_batch": 2}])
def test_variations_of_the_learner_change_what_is_learned_only(change: dict[str, Any]) -> None:
    plain, _ = run_with(strategy="uniform")
    changed, _ = run_with(strategy="uniform", **change)
    assert changed.steps[0]["tokens"] == plain.steps[0]["tokens"]
    assert changed.final != plain.final


def test_lucky_rollouts_score_beside_equal_ones_that_do_not() -> None:
    run = LabRun(SHORT.model_copy(update={"lucky": 0.4}))
    rollouts, score_U = run._judge(run._problems[:1], np.array([0]), _wrong(run))
    assert score_U.tolist() == [0.0, 1.0]
    assert rollouts.count_U.sum() == 50
    assert 5 <= rollouts.count_U[1] <= 35


def test_exact_pass_rates_have_no_error() -> None:
    result = LabRun(SHORT.model_copy(update={"exact_pass_rates": True})).run()
    assert all(step["pass_rate_rmse"] == 0.0 for step in result.steps)


def test_unsolvable_prompts_never_succeed() -> None:
    result = LabRun(SHORT.model_copy(update={"unsolvable": 1.0})).run()
    assert all(step["coba/success_per_rollout"] == 0.0 for step in result.steps)
    assert result.curve[0][1] == result.final  # nothing to learn from


def test_solved_prompts_always_succeed_and_are_never_unsolvable() -> None:
    result = LabRun(SHORT.model_copy(update={"solved": 1.0})).run()
    assert all(step["coba/success_per_rollout"] == 1.0 for step in result.steps)
    assert result.curve[0][1] == result.final  # nothing to learn from
    for shares in ((0.45, 0.25), (0.5, 0.5), (1 / 3, 2 / 3), (0.501, 0.499)):
        run = LabRun(
            SHORT.model_copy(update={"unsolvable": shares[0], "solved": shares[1], "train_prompts": 101})
        )
        assert not (run._unsolvable & run._solved).any()
        assert run._unsolvable.sum() == round(shares[0] * 101)
        assert (run._unsolvable | run._solved).sum() == round(sum(shares) * 101)


def test_shares_that_do_not_fit_beside_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'solved' is 0.6: .*unsolvable=0.5"):
        validated(LabConfig, {"unsolvable": 0.5, "solved": 0.6})


@pytest.mark.parametrize("seed", range(4))
def test_no_two_streams_of_random_numbers_coincide(seed: int) -> None:
    """Those of a run and those that made its prompts and its policy; neither with the run's own seed nor with 0."""
    streams = random_streams(seed)
    assert set(streams) == set(STREAMS)
    first = {name: rng.integers(2**63) for name, rng in streams.items()}
    for other in {0, seed}:
        for entropy in (other, *([other, i] for i in range(8))):
            first[f"{entropy}"] = np.random.default_rng(entropy).integers(2**63)
    distinct = len(first) - len({0, seed})  # a seed alone and the same with a zero after it are one
    assert len(set(first.values())) == distinct


def test_a_run_draws_from_its_own_streams_only() -> None:
    """Sampling at seed 0 is not the stream of the prompts, and lucky verdicts do not move the rollouts."""
    plain, lucky = (LabRun(SHORT.model_copy(update={"lucky": share})) for share in (0.0, 0.5))
    sampled = [
        run.policy.read(run._problems[:4]).sample(np.full(4, 9), run._streams["sampling"]).completions
        for run in (plain, lucky)
        for _ in [run._judge(run._problems[:1], np.array([0]), _wrong(run))]
    ]
    assert sampled[0] == sampled[1]
    of_the_prompts = plain.policy.read(plain._problems[:4]).sample(
        np.full(4, 9), np.random.default_rng([0, 0])
    )
    assert sampled[0] != of_the_prompts.completions


def _wrong(run: LabRun) -> UniqueRollouts:
    return UniqueRollouts(np.array([0]), [(0, 0, 0)], np.array([50]))


def test_tokens_are_counted_and_can_end_a_run() -> None:
    policy = LabPolicy(policy_path("moderate"), TASK.max_completion_length)
    rollouts = policy.read(TASK.train_problems()[:3]).sample(np.array([5, 1, 3]), np.random.default_rng(0))
    each = [len(c) for c, n in zip(rollouts.completions, rollouts.count_U, strict=True) for _ in range(n)]
    assert rollouts.num_tokens == sum(each)
    assert len(each) == 9
    plain = LabRun(SHORT).run()
    spent = np.cumsum([step["tokens"] for step in plain.steps])
    for tokens, steps in ((1, 1), (spent[0], 1), (spent[0] + 1, 2), (spent[-1] + 1, 4)):
        result = LabRun(SHORT, tokens=int(tokens)).run()
        assert len(result.steps) == result.curve[-1][0] == steps
        assert result.steps[0]["tokens"] == spent[0]
        by_config = LabRun(SHORT.model_copy(update={"tokens": int(tokens)})).run()
        assert len(by_config.steps) == min(steps, SHORT.steps)
        assert by_config.steps == result.steps[: SHORT.steps]


@pytest.mark.parametrize("pilot", [0, 4])
def test_limited_tokens_fix_what_a_step_is_expected_to_generate(pilot: int) -> None:
    """In place of its rollouts, which are counted."""
    limited = SHORT.model_copy(
        update={"budget_unit": "tokens", "pilot": pilot, "train_prompts": 16, "steps": 9}
    )
    result = LabRun(limited).run()
    generated, rollouts = (np.array([step[what] for step in result.steps]) for what in ("tokens", "rollouts"))
    assert result.rollouts == rollouts.sum() != limited.rollouts
    assert [int(rollouts[0]), int(generated[0])] == [8 * 16, int(result.steps[0]["coba/tokens"])]
    expected = np.array([step["coba/expected_tokens"] for step in result.steps[1:]])
    assert generated[1:] == pytest.approx(expected, rel=0.2)
    assert len(set(rollouts[1:].tolist())) > 1
    even = LabRun(limited.model_copy(update={"strategy": "uniform", "pilot": 0})).run()
    assert even.rollouts == limited.rollouts


def test_selection_leaves_out_what_is_worth_little() -> None:
    chosen: dict[float, list[int]] = {}
    for share in (0.0, 0.9, 1.0):
        config = LabConfig(
            regime="moderate",
            steps=5,
            prompts_per_step=256,
            rollouts_per_prompt=2,
            min_budget=1,
            max_budget=32,
            min_value_share=share,
        )
        sizes: list[int] = []
        LabRun(config, on_step=lambda _, allocation, sizes=sizes: sizes.append(len(allocation.budgets))).run()
        chosen[share] = sizes
    assert chosen[0.0] == [256] * 5
    assert chosen[0.9][0] == chosen[1.0][0] == 256  # nothing is known yet
    # 512 rollouts, at most 32 each, need 16 prompts.
    assert 16 <= chosen[1.0][4] < 128
    assert 16 <= chosen[0.9][4] < 128


def test_selection_by_the_value_of_another_rule() -> None:
    sizes: list[int] = []
    config = LabConfig(strategy="knapsack", steps=9, min_value_share=0.5)
    LabRun(config, on_step=lambda _, allocation: sizes.append(len(allocation.budgets))).run()
    assert sizes[0] == 64  # nothing is known yet
    assert 8 <= sizes[-1] < 64


def test_the_mechanism_is_the_rank_correlation_of_budgets_and_value() -> None:
    believed, true = np.array([0.1, 0.3, np.nan, 0.5]), np.array([0.5, 0.3, 0.2, 0.1])
    allocation = Allocation(["a", "b", "c", "d"], np.array([2, 8, 9, 20]), believed)
    measured = mechanism(make_strategy("variance"), allocation, true)
    assert measured == {"budget_follows_believed_value": 1.0, "budget_follows_true_value": -1.0}
    assert mechanism(make_strategy("uniform"), allocation, true) == {}
    even = Allocation(["a", "b"], np.array([4, 4]), believed[:2])
    assert mechanism(make_strategy("variance"), even, true[:2]) == {}


def test_selection_needs_a_value_function() -> None:
    with pytest.raises(OptionError, match="no value function"):
        LabConfig(strategy="gvm", min_value_share=0.1).make_allocator()
