"""What may happen around training: evaluation, failing rewards, servers, environments."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl_tiny import prompts, text_of, varied

import coba_rl.hosts.trl.trainer
from coba_rl.errors import ConfigError
from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer

# pytest.warns hands other warnings on under another module, past the filters of the suite.
pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]


def state_of(run: Any) -> str:
    return json.dumps(run.trainer.allocator.state_dict(), sort_keys=True)


# --- Evaluation ---


def test_evaluation_leaves_the_allocator_alone(tiny):
    run = tiny.trainer(
        keywords={"eval_dataset": prompts(4)}, per_device_eval_batch_size=8, num_generations_eval=2
    )
    run.trainer.train()
    before, last = state_of(run), run.trainer.last_allocation
    metrics = run.trainer.evaluate()
    assert "eval_reward" in metrics
    assert not any(name.startswith("eval_coba") for name in metrics)
    assert state_of(run) == before
    assert run.trainer.last_allocation is last
    assert len(run.records) == 4


def test_evaluation_during_training_changes_no_count(tiny):
    options = {"data": prompts(8), "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    run = tiny.train(keywords={"eval_dataset": prompts(4)}, max_steps=5, **options)
    assert len(run.records) == 5
    assert sum(record.attempts for step in run.records for record in step) == 5 * 16
    assert len([log for log in run.logs if "eval_reward" in log]) == 5
    assert run.trainer.allocator.state_dict()["step"] == 5


def test_evaluation_is_that_of_grpo_trainer(tiny):
    def evaluate(trainer_class: type, **options: Any) -> dict[str, float]:
        data = {"eval_dataset": prompts(4)}
        run = tiny.trainer(trainer_class, keywords=data, per_device_eval_batch_size=8, **options)
        return run.trainer.evaluate()

    ours, stock = evaluate(CobaGRPOTrainer), evaluate(GRPOTrainer)
    times = {name for name in stock if "time" in name or "per_second" in name}
    assert {k: v for k, v in ours.items() if k not in times} == {
        k: v for k, v in stock.items() if k not in times
    }


# --- Rewards ---


def points(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """The same successes on another scale: −1 or 10."""
    return [11.0 * value - 1.0 for value in varied(prompts, completions)]


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(text_of(completion))) for completion in completions]


def test_rewards_on_another_scale_are_refused_before_anything_is_trained(tiny):
    run = tiny.trainer(rewards=points)
    before = run.weights
    with pytest.raises(ConfigError, match=r"success (-1|10)\.0 lies.* set success_threshold.*'points'"):
        run.trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in run.weights.items())
    assert not run.trainer.allocator.strategy.capability.started


def test_a_threshold_makes_a_success_of_any_scale(tiny):
    plain = tiny.train(data=prompts(8), max_steps=5)
    scaled = tiny.train(data=prompts(8), max_steps=5, rewards=points, success_threshold=10.0)
    assert [record.successes for record in plain.records[0]] == [
        record.successes for record in scaled.records[0]
    ]
    assert scaled.budgets[:3] == plain.budgets[:3]


def test_a_reward_that_equals_the_threshold_succeeds_in_float32(tiny):
    def nine_tenths(completions: list[Any], **_: Any) -> list[float]:
        return [0.9] * len(completions)

    run = tiny.train(rewards=nine_tenths, success_threshold=0.9, max_steps=1)
    assert [record.successes for record in run.records[0]] == [4.0] * 4
    assert run.logs[0]["coba/success_per_prompt"] == 1.0


def test_a_reward_beyond_1_by_rounding_is_1(tiny):
    def tenths(completions: list[Any], **_: Any) -> list[float]:
        return [1.0000001] * len(completions)

    run = tiny.train(rewards=tenths, max_steps=1)
    assert [record.successes for record in run.records[0]] == [4.0] * 4


def test_success_is_the_named_reward_not_the_weighted_sum(tiny):
    options = {"rewards": [length, varied], "reward_weights": [5.0, 0.1], "max_steps": 3}
    run = tiny.train(success_reward="varied", **options)
    for generation, records in zip(run.generations, run.records, strict=True):
        assert sum(record.successes for record in records) == generation["rewards"][:, 1].sum()
    with pytest.raises(
        ConfigError, match=r"success_reward='varid' is no reward function. Did you mean 'varied'"
    ):
        tiny.trainer(success_reward="varid", **options)


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_an_unjudged_rollout_is_neither_pass_nor_attempt(tiny, nothing):
    def half_judged(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
        values = varied(prompts, completions)
        return [
            value if len(text_of(c)) % 2 else nothing for value, c in zip(values, completions, strict=True)
        ]

    run = tiny.train(rewards=half_judged, data=prompts(8), max_steps=4)
    unjudged = 0
    for generation, records, log in zip(run.generations, run.records, run.logs[:4], strict=True):
        judged = ~torch.isnan(generation["rewards"][:, 0])
        assert sum(record.attempts for record in records) == judged.sum()
        assert generation["advantages"][~judged].abs().sum() == 0.0
        assert log["coba/unjudged_rollouts"] == (~judged).sum()
        unjudged += int((~judged).sum())
    assert unjudged > 0
    assert all(torch.isfinite(value).all() for value in run.weights.values())


@pytest.mark.filterwarnings("ignore:.*returned None:UserWarning")
def test_a_step_without_any_judgement_goes_on(tiny):
    def silent(completions: list[Any], **_: Any) -> list[None]:
        return [None] * len(completions)

    run = tiny.train(rewards=silent, max_steps=2)
    assert run.grad_norms == [0.0, 0.0]
    assert not run.trainer.allocator.strategy.capability.started


def test_a_failing_reward_leaves_a_usable_trainer(tiny):
    calls = []

    def fails_once(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        calls.append(len(prompts))
        if len(calls) == 2:
            raise RuntimeError("the judge is away")
        return varied(prompts, completions)

    run = tiny.trainer(
        rewards=fails_once, keywords={"eval_dataset": prompts(4)}, per_device_eval_batch_size=8
    )
    with pytest.raises(RuntimeError, match="the judge is away"):
        run.trainer.train()
    assert len(run.records) == 1
    known = run.trainer.allocator.strategy.seen([record.prompt_id for record in run.records[0]])
    assert known.all()
    assert "eval_reward" in run.trainer.evaluate()
    run.trainer.train()
    assert len(run.records) == 5


# --- Ways to generate ---


class FakeServer:
    """Stands in for a vLLM server: one completion for every num_generations-th prompt, n times."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []

    def sync_weights(self) -> None:
        pass

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any
    ) -> tuple[Any, Any, Any, None]:
        self.requests.append((len(prompts), num_generations))
        distinct = prompts[::num_generations]
        completions = [[*prompt[-2:], 1] for prompt in distinct for _ in range(num_generations)]
        logprobs = [[[-1.0]] * len(completion) for completion in completions]
        return prompts, completions, logprobs, None


def test_a_server_is_asked_for_one_completion_a_row(tiny):
    """Uneven groups: every num_generations-th row would be the wrong prompts."""

    def of_own_prompt(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [
            float(completion == prompt[-2:]) for prompt, completion in zip(prompts, completions, strict=True)
        ]

    data = {"eval_dataset": prompts(4)}
    run = tiny.trainer(
        rewards=[of_own_prompt, varied],
        success_reward="varied",
        keywords=data,
        min_budget=1,
        data=prompts(8),
        max_steps=6,
        per_device_eval_batch_size=8,
        vllm_importance_sampling_correction=False,
    )
    server = FakeServer()
    run.trainer.use_vllm, run.trainer.vllm_generation, run.trainer._last_loaded_step = True, server, -1
    run.trainer.train()
    assert server.requests == [(16, 1)] * 6
    assert all((generation["rewards"][:, 0] == 1.0).all() for generation in run.generations)
    run.trainer.evaluate()
    assert server.requests[6:] == [(8, 4)] * 2


class Guess:
    """An environment whose prompt comes from its columns."""

    def reset(self, number: int, **_: Any) -> None:
        self.number = number

    def get_reward(self) -> float:
        return float(self.number % 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_environments(tiny):
    chat = [{"role": "user", "content": "1+1="}]
    data = Dataset.from_dict({"prompt": [chat] * 8, "number": range(8)})
    run = tiny.train(rewards=None, data=data, max_steps=3, keywords={"environment_factory": Guess})
    assert len({key for step in run.budgets for key in step}) == 8
    for records in run.records:
        assert all(record.successes in (0.0, record.budget) for record in records)


# --- Construction ---


def test_the_same_prompt_everywhere_is_announced_once(tiny):
    data = Dataset.from_dict({"prompt": ["1+1="] * 8})
    with pytest.warns(UserWarning, match="All 4 prompts .* share one history") as caught:
        run = tiny.train(data=data)
    assert len([warning for warning in caught if "share one history" in str(warning.message)]) == 1
    assert [record.budget for record in run.records[-1]] == [4, 4, 4, 4]


def test_a_plain_config_is_refused(tiny):
    with pytest.raises(ConfigError, match="args is a GRPOConfig: expected a CobaGRPOConfig"):
        CobaGRPOTrainer(
            LlamaForCausalLM.from_pretrained(tiny.folder / "model"),
            varied,
            tiny.config(GRPOConfig),
            prompts(12),
        )


class _Defaults(CobaGRPOConfig):
    """The defaults, on a machine without bf16."""

    def __init__(self, output_dir: str) -> None:
        super().__init__(output_dir, use_cpu=True, bf16=False)


def test_without_args_the_defaults_are_those_of_coba(monkeypatch):
    made: list[Any] = []

    def remember(self: Any, model: Any, reward_funcs: Any, args: Any) -> None:
        made.append(args)
        self.reward_func_names, self.model = ["varied"], torch.nn.Linear(2, 2)
        self.is_deepspeed_enabled = self.is_fsdp_enabled = False
        self.accelerator = SimpleNamespace(is_main_process=True)

    monkeypatch.setattr(coba_rl.hosts.trl.trainer, "CobaGRPOConfig", _Defaults)
    monkeypatch.setattr(GRPOTrainer, "__init__", remember)
    with pytest.warns(UserWarning, match="a generation batch is one prompt"):
        trainer = CobaGRPOTrainer("someone/some-model", varied)
    assert made[0].output_dir == "some-model-GRPO"
    assert trainer.allocator.bounds == (2, 128)


def test_no_log_is_needed(tiny):
    run = tiny.trainer(max_steps=1)
    run.trainer.allocation_log = None
    run.trainer.train()
    assert run.trainer.last_allocation.total == 16
