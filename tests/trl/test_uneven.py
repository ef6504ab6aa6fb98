"""Uneven budgets: advantages group by group, rows and prompts paired, totals kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from trl_reference import reference_advantages
from trl_tiny import Run, prompts, text_of, varied

from coba_rl.allocation import STRATEGIES
from coba_rl.allocation.strategies.decay import LinearDecay
from coba_rl.tasks.base import content_id

pytestmark = pytest.mark.trl

UNEVEN: dict[str, Any] = {
    "strategy": "coba-paper",
    "min_budget": 1,
    "max_budget": 12,
    "data": 8,
    "max_steps": 6,
}
WEIGHTED: dict[str, Any] = {**UNEVEN, "data": prompts(8), "allocation_mode": "weights"}


def short(completions: list[Any], **_: Any) -> list[float | None]:
    """A graded reward that does not judge the longest completions."""
    lengths = [len(text_of(completion)) for completion in completions]
    return [None if length > 5 else 1.0 - length / 8 for length in lengths]


def train_uneven(tiny: Any, **options: Any) -> Run:
    options = {**UNEVEN, **options}
    data = options.pop("data")
    run = tiny.train(data=prompts(data) if isinstance(data, int) else data, **options)
    assert sum(len(set(step.values())) > 1 for step in run.budgets) >= 2, "budgets were never uneven"
    return run


MODES = {
    "group": {"scale_rewards": "group"},
    "batch": {"scale_rewards": "batch"},
    "none": {"scale_rewards": "none"},
    "normalize": {"multi_objective_aggregation": "normalize_then_sum"},
}


@pytest.mark.parametrize("num_rewards", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_advantages_are_those_of_each_prompts_own_group(tiny, mode, num_rewards):
    rewards, weights = [varied, short][:num_rewards], [1.0, 0.5][:num_rewards]
    run = train_uneven(tiny, rewards=rewards, reward_weights=weights, **MODES[mode])
    for generation in run.generations:
        expected = reference_advantages(
            generation["rewards"].numpy().astype(float),
            np.array(weights),
            generation["allocation"].budgets.tolist(),
            MODES[mode].get("scale_rewards", "group"),
            MODES[mode].get("multi_objective_aggregation", "sum_then_normalize"),
        )
        np.testing.assert_allclose(generation["advantages"].numpy(), expected, atol=1e-4, rtol=1e-4)
        np.testing.assert_allclose(generation["logged_advantages"], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_zero_std_is_the_share_of_rollouts_in_dead_groups(tiny, mode):
    run = train_uneven(tiny, **MODES[mode])
    for generation in run.generations:
        groups = np.split(
            generation["rewards"][:, 0].numpy(), np.cumsum(generation["allocation"].budgets)[:-1]
        )
        dead = sum(len(group) for group in groups if group.min() == group.max())
        assert generation["frac_reward_zero_std"] == pytest.approx(dead / 16)


@pytest.mark.parametrize(
    "shape",
    [
        {"per_device_train_batch_size": 16},
        {"per_device_train_batch_size": 16, "num_iterations": 2, "max_steps": 12},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 24},
    ],
)
def test_rows_and_prompts_stay_paired(tiny, shape):
    """Each completion is made from, and scored with, the row of its own prompt; windows do not repeat."""
    scored: list[tuple[str, str]] = []

    def paired(prompts: list[str], completions: list[str], tag: list[str], **_: Any) -> list[float]:
        assert tag == [f"tag of {prompt}" for prompt in prompts]
        scored.extend(zip(prompts, completions, strict=True))
        return varied(prompts, completions)

    texts = prompts(8)["prompt"]
    data = Dataset.from_dict({"prompt": texts, "tag": [f"tag of {text}" for text in texts]})
    run = train_uneven(tiny, rewards=paired, data=data, **shape)
    assert len(run.generations) == 6
    made: list[tuple[str, str]] = []
    for generation in run.generations:
        allocation = generation["allocation"]
        expected = [allocation.prompt_ids[i] for i in allocation.repeat_index]
        assert [content_id(prompt) for prompt in generation["prompts"]] == expected
        assert len(set(allocation.prompt_ids)) == 4
        made += zip(generation["prompts"], generation["completions"], strict=True)
    assert made == scored
    epochs = [set(one) | set(other) for one, other in zip(run.budgets[::2], run.budgets[1::2], strict=True)]
    assert epochs == [{content_id(text) for text in texts}] * 3


def test_every_row_is_its_own_copy(tiny, monkeypatch):
    """A rollout function's results, which are written into the rows, reach the reward of their own rollout."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        tokenizer = trainer.processing_class
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [[2 + i % 10, 1] for i in range(len(prompts))],
            "logprobs": None,
            "mark": list(range(len(prompts))),
        }

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    marks: list[list[int]] = []

    def marked(prompts: list[str], completions: list[str], mark: list[int], **_: Any) -> list[float]:
        marks.append(mark)
        return varied(prompts, completions)

    run = tiny.train(
        rewards=marked, data=prompts(8), max_steps=6, min_budget=1, keywords={"rollout_func": rollout}
    )
    assert marks == [list(range(16))] * 6
    assert any(len(set(step.values())) > 1 for step in run.budgets)


@pytest.mark.parametrize("masked", [False, True])
def test_lengths_are_what_the_policy_generated_and_limit_the_tokens(tiny, monkeypatch, masked):
    """Three tokens for prompts of an even digit and nine for the others; where masked, two of them come from elsewhere."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        tokenizer = trainer.processing_class
        lengths = [3 + 6 * (int(prompt[2]) % 2) for prompt in prompts]
        masks = {"env_mask": [[1] * (n - 2) + [0, 0] for n in lengths]} if masked else {}
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [[2 + i % 10] + [3] * (n - 1) for i, n in enumerate(lengths)],
            "logprobs": None,
            **masks,
        }

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    run = tiny.train(
        rewards=varied, data=prompts(8), max_steps=6, budget_unit="tokens", keywords={"rollout_func": rollout}
    )
    logs = [log for log in run.logs if "coba/tokens" in log]
    assert len(logs) == 6
    length = {content_id(f"0+{i}="): 3 + 6 * (i % 2) - 2 * masked for i in range(8)}
    for budgets, log in zip(run.budgets, logs, strict=True):
        assert log["coba/tokens"] == sum(budget * length[prompt] for prompt, budget in budgets.items())
    for budgets, log in list(zip(run.budgets, logs, strict=True))[2:]:  # from the second visit on
        even = 16 * sum(length[prompt] for prompt in budgets) / len(budgets)
        assert log["coba/length_error"] < 0.5
        assert log["coba/expected_tokens"] <= 1.25 * even


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_and_spends_the_total(tiny, strategy):
    run = tiny.train(strategy=strategy, data=prompts(8), max_steps=5, max_budget=10)
    assert len(run.records) == 5
    for step, records in enumerate(run.records, start=1):
        budgets = [record.budget for record in records]
        assert sum(budgets) == 16
        assert min(budgets) >= 2
        assert max(budgets) <= 10
        assert {record.step for record in records} == {step}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 6, "num_iterations": 2}, 3),
        ({"max_steps": -1, "num_train_epochs": 2, "data": prompts(8)}, 4),
    ],
    ids=["steps", "epochs"],
)
def test_a_strategy_is_told_the_number_of_allocations(tiny, monkeypatch, options, expected):
    told = []

    def begin(self: LinearDecay, num_allocations: int) -> None:
        told.append(num_allocations)
        begin_itself(self, num_allocations)

    begin_itself = LinearDecay.begin
    monkeypatch.setattr(LinearDecay, "begin", begin)
    run = tiny.train(strategy="linear-decay", **options)
    assert set(told) == {expected}
    assert len(run.records) == expected


def test_records_and_metrics_tell_what_happened(tiny):
    run = train_uneven(tiny)
    for generation, records, log in zip(run.generations, run.records, run.logs, strict=False):
        rewards = generation["rewards"][:, 0].numpy()
        for record, group in zip(
            records, np.split(rewards, np.cumsum(generation["allocation"].budgets)[:-1]), strict=True
        ):
            assert record.budget == record.attempts == len(group)
            assert record.successes == group.sum()
        means = [record.successes / record.attempts for record in records]
        assert log["coba/success_per_prompt"] == pytest.approx(np.mean(means))
        assert (
            log["coba/success_per_rollout"] == pytest.approx(rewards.mean()) == pytest.approx(log["reward"])
        )
        assert log["coba/budget_max"] == max(record.budget for record in records)
    assert run.trainer.last_allocation is run.generations[-1]["allocation"]


def test_pass_rates_are_those_of_the_last_visit(tiny):
    run = tiny.train(strategy="coba-paper", data=prompts(8), max_steps=6)
    last: dict[Any, float] = {}
    for records in run.records:
        for record in records:
            assert record.pass_rate == last.get(record.prompt_id)
            last[record.prompt_id] = record.successes / record.attempts


def test_per_prompt_weighting_gives_every_prompt_the_same_say(tiny):
    run = train_uneven(tiny, per_prompt_weighting=True)
    plain = train_uneven(tiny)
    assert (
        run.generations[2]["allocation"].budgets.tolist()
        == plain.generations[2]["allocation"].budgets.tolist()
    )
    for generation in run.generations:
        budgets = generation["allocation"].budgets
        unweighted = reference_advantages(
            generation["rewards"].numpy().astype(float),
            np.ones(1),
            budgets.tolist(),
            "group",
            "sum_then_normalize",
        )
        weight = np.repeat(4 / budgets, budgets)
        np.testing.assert_allclose(generation["advantages"].numpy(), unweighted * weight, atol=1e-4)


LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_scale_the_advantages_of_even_groups(tiny, loss):
    level = "sequence" if loss == "luspo" else "token"
    run = tiny.train(**WEIGHTED, loss_type=loss, importance_sampling_level=level)
    uneven = 0
    for generation, log in zip(run.generations, run.logs, strict=False):
        allocation = generation["allocation"]
        assert allocation.budgets.tolist() == [4] * 4
        unweighted = reference_advantages(
            generation["rewards"].numpy().astype(float), np.ones(1), [4] * 4, "group", "sum_then_normalize"
        )
        weighted = unweighted * np.repeat(generation["weights"], 4)
        np.testing.assert_allclose(generation["advantages"].numpy(), weighted, atol=1e-4)
        np.testing.assert_allclose(generation["logged_advantages"], weighted, atol=1e-4)
        assert log["coba/weight_max"] == pytest.approx(generation["weights"].max())
        uneven += np.abs(weighted - unweighted).max() > 0.1
    assert uneven >= 2


@pytest.mark.parametrize("loss", LOSSES)
def test_doubling_every_weight_doubles_the_loss(tiny, loss, monkeypatch):
    """The denominators are those of the loss without weights."""
    level = "sequence" if loss == "luspo" else "token"
    options = {**WEIGHTED, "loss_type": loss, "importance_sampling_level": level, "max_steps": 1}
    losses = []
    for factor in (1.0, 2.0):
        run = tiny.trainer(**options)
        weights = factor * np.array([0.5, 1.5, 0.25, 1.75])
        monkeypatch.setattr(run.trainer.allocator, "weigh", lambda *_, weights=weights: weights)
        run.trainer.train()
        losses.append(run.grad_norms[0])
    assert losses[0] > 0
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-4)


def test_the_id_column_is_used_where_the_data_have_it(tiny):
    texts = prompts(8)["prompt"]
    data = Dataset.from_dict({"prompt": texts, "prompt_id": [f"p{i}" for i in range(8)], "number": range(8)})
    by_default = tiny.train(data=data, max_steps=2, remove_unused_columns=True)
    assert {key for step in by_default.budgets for key in step} == {f"p{i}" for i in range(8)}
    by_number = tiny.train(data=data, max_steps=2, prompt_id_column="number")
    assert {key for step in by_number.budgets for key in step} == set(range(8))
    by_content = tiny.train(data=data, max_steps=2, prompt_id_column="none")
    assert {key for step in by_content.budgets for key in step} == {content_id(text) for text in texts}


def test_prompts_that_occur_twice_share_a_history_but_not_a_group(tiny):
    data = Dataset.from_dict({"prompt": ["0+1=", "0+1=", "0+2=", "0+3="]})
    run = tiny.train(data=data, max_steps=3, min_budget=1)
    for generation, records in zip(run.generations, run.records, strict=True):
        assert len(records) == 4
        assert len({record.prompt_id for record in records}) == 3
        expected = reference_advantages(
            generation["rewards"].numpy().astype(float),
            np.ones(1),
            [record.budget for record in records],
            "group",
            "sum_then_normalize",
        )
        np.testing.assert_allclose(generation["advantages"].numpy(), expected, atol=1e-4)


def test_training_moves_the_model_and_is_repeatable(tiny):
    one, other = train_uneven(tiny), train_uneven(tiny)
    start = tiny.trainer().weights
    assert one.budgets == other.budgets
    assert all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())
    assert any(not torch.equal(value, start[name]) for name, value in one.weights.items())
