"""Two waves of generation: every rollout made and judged once, one batch in the order of the groups, one loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOTrainer
from trl_reference import reference_advantages
from trl_tiny import prompts, varied

from coba_rl.errors import ConfigError, OptionError
from coba_rl.hosts.trl import CobaGRPOConfig
from coba_rl.hosts.trl.waves import Wave

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]

TWO = {"pilot": 2, "min_budget": 1, "max_budget": 12}


class Judge:
    """`varied`, with a number of its own for each rollout that it is asked about, logged as a column."""

    __name__ = "judge"

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.count = 0

    def __call__(
        self, prompts: list[str], completions: list[str], log_extra: Any, log_metric: Any, **_: Any
    ) -> list[float]:
        self.asked.append(list(zip(prompts, completions, strict=True)))
        numbers = list(range(self.count, self.count + len(prompts)))
        self.count += len(prompts)
        log_extra("number", numbers)
        log_extra("twin", completions)
        log_metric("asked", float(len(prompts)))
        return varied(prompts, completions)


def test_each_rollout_is_judged_once_and_trained_on_with_its_own_reward(tiny):
    judge = Judge()
    run = tiny.train(rewards=judge, max_steps=3, **TWO)
    assert [len(rows) for rows in judge.asked] == [8, 8] * 3  # 4 prompts, 16 rollouts
    for step, generation in enumerate(run.generations):
        pilot, rest = judge.asked[2 * step], judge.asked[2 * step + 1]
        batch = list(zip(generation["prompts"], generation["completions"], strict=True))
        assert sorted(batch) == sorted(pilot + rest)
        allocation = generation["allocation"]
        assert not allocation.is_pilot
        assert allocation.budgets.min() >= 2
        heads = [pilot[2 * i][0] for i in range(4)]
        assert [prompt for prompt, _ in batch] == [heads[i] for i in allocation.repeat_index]
        for i, start in enumerate(np.cumsum(allocation.budgets) - allocation.budgets):
            assert batch[start : start + 2] == pilot[2 * i : 2 * i + 2]  # a group begins with its pilot
        rewards = generation["rewards"].numpy()
        assert rewards[:, 0].tolist() == varied(*zip(*batch, strict=True))
        expected = reference_advantages(
            rewards, np.ones(1), allocation.budgets, "group", "sum_then_normalize"
        )
        np.testing.assert_allclose(generation["advantages"], expected, atol=1e-4)
    assert any(len(set(generation["allocation"].budgets)) > 1 for generation in run.generations)


def test_what_is_logged_is_that_of_one_batch(tiny):
    judge = Judge()
    run = tiny.train(rewards=judge, max_steps=2, **TWO)
    logs = run.trainer._logs
    last = run.generations[-1]
    assert list(logs["completion"])[-16:] == last["completions"]
    assert list(logs["extra"]["twin"])[-16:] == last["completions"]  # a column goes with its rollout
    assert sorted(logs["extra"]["number"])[-16:] == list(range(16, 32))
    assert list(logs["rewards"]["judge"])[-16:] == last["rewards"][:, 0].tolist()
    steps = [log for log in run.logs if "coba/rollouts" in log]
    tokens = 0.0
    for log, generation in zip(steps, run.generations, strict=True):
        assert log["coba/rollouts"] == 16
        assert log["asked"] == 8
        tokens += 16 * (log["completions/mean_length"] + 4)  # prompts have 4 tokens
        assert log["num_tokens"] == pytest.approx(tokens)
        assert log["reward"] == pytest.approx(generation["rewards"].mean().item())


def test_a_pilot_of_all_rollouts_is_stock_trl(tiny):
    stock = tiny.train(GRPOTrainer)
    with pytest.warns(UserWarning, match="pilot=4 is num_generations"):
        whole = tiny.train(pilot=4)
    assert whole.losses == stock.losses
    assert all(torch.equal(value, stock.weights[name]) for name, value in whole.weights.items())


def test_resume_equals_no_interruption(tiny):
    options = {**TWO, "save_strategy": "steps", "save_steps": 2, "output_dir": str(tiny.folder / "waves")}
    straight = tiny.train(**options)
    resumed = tiny.train(**options, resume_from=str(tiny.folder / "waves" / "checkpoint-2"))
    assert resumed.budgets == straight.budgets[2:]
    assert all(torch.equal(value, straight.weights[name]) for name, value in resumed.weights.items())
    assert resumed.trainer.allocator.state_dict() == straight.trainer.allocator.state_dict()


def test_several_updates_of_one_batch(tiny):
    run = tiny.train(
        **TWO, steps_per_generation=4, num_iterations=2, per_device_train_batch_size=4, max_steps=8
    )
    assert len(run.generations) == 1
    assert sum(run.budgets[0].values()) == 16


def test_evaluation_has_one_wave(tiny):
    judge = Judge()
    keywords = {"eval_dataset": prompts(4)}
    run = tiny.trainer(rewards=judge, keywords=keywords, per_device_eval_batch_size=8, **TWO)
    run.trainer.evaluate()
    assert {len(rows) for rows in judge.asked} == {8}
    assert run.records == []


def test_a_failure_between_the_waves_leaves_no_group_open(tiny):
    calls = []

    def fails(prompts, **_):
        calls.append(len(prompts))
        if len(calls) == 2:
            raise RuntimeError("no reward")
        return [0.5] * len(prompts)

    run = tiny.trainer(rewards=fails, **TWO)
    with pytest.raises(RuntimeError, match="no reward"):
        run.trainer.train()
    assert run.trainer._session.open_groups == []
    run.trainer.train()
    assert [sum(step.values()) for step in run.budgets] == [16] * 4


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_what_takes_more_than_a_turn_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"pilot=2 with rollout_func: expected one of them.*Set pilot=0"):
        tiny.trainer(keywords={"rollout_func": lambda prompts, trainer: {}}, **TWO)


def test_images_are_refused(tiny):
    run = tiny.trainer(**TWO)
    rows = [{"prompt": f"{i // 4}+1=", "image": None} for i in range(16)]
    run.trainer.model.train()
    with pytest.raises(ConfigError, match="pilot=2 with images in the data"):
        run.trainer._generate_and_score_completions(rows)


@pytest.mark.parametrize(
    ("pilot", "error", "expected"),
    [
        (9, ConfigError, "pilot=9, num_generations=8.*at most 8"),
        (-1, OptionError, "pilot=-1: expected a whole number"),
    ],
)
def test_pilots_that_do_not_fit(pilot, error, expected):
    with pytest.raises(error, match=expected):
        CobaGRPOConfig("out", use_cpu=True, bf16=False, activation_checkpointing=False, pilot=pilot)


def test_rollouts_of_the_waves_keep_their_own_columns():
    first = Wave([[1], [2]], [[0.1], [0.2]], torch.tensor([[1.0], [2.0]]), {"a": [1, 2]})
    second = Wave([[3]], [[0.3]], torch.tensor([[3.0]]), {"b": [3]})
    both = first.then(second, np.array([0, 2, 1]))
    assert both.completion_ids == [[1], [3], [2]]
    assert both.logprobs == [[0.1], [0.3], [0.2]]
    assert both.rewards_RF.tolist() == [[1.0], [3.0], [2.0]]
    assert both.columns == {"a": [1, None, 2], "b": [None, 3, None]}
