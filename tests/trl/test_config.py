"""The configuration: nothing clashes with GRPOConfig, options reach the strategy, and mistakes are named."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
from trl import GRPOConfig, TrlParser

from coba_rl.allocation import STRATEGIES
from coba_rl.allocation.strategies.uniform import Uniform
from coba_rl.errors import ConfigError, OptionError, UnknownStrategyError
from coba_rl.hosts.trl import CobaGRPOConfig

BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "activation_checkpointing": False}


def config(**options):
    return CobaGRPOConfig(**{**BASE, **options})


class Own(Uniform):
    """A strategy from outside."""

    name = "own"


def test_no_field_of_grpo_config_is_taken_over():
    assert not set(CobaGRPOConfig.__annotations__) & {field.name for field in dataclasses.fields(GRPOConfig)}


def test_unset_options_leave_the_strategys_defaults():
    for name, cls in STRATEGIES.items():
        assert config(strategy=name).allocator_spec().build().strategy.options() == cls().options()


def test_every_field_is_explained():
    for field in dataclasses.fields(CobaGRPOConfig):
        if field.name in CobaGRPOConfig.__annotations__:
            assert len(field.metadata["help"]) > 20, field.name
            assert "%" not in field.metadata["help"]


def test_beta_stays_the_kl_coefficient():
    made = config(strategy="static-explore", beta=0.04, strategy_options={"beta": 7.0})
    assert made.beta == 0.04
    assert made.allocator_spec().build().strategy.beta == 7.0


def test_trl_parser_reads_yaml_and_command_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        """
output_dir: out
use_cpu: true
bf16: false
activation_checkpointing: false
num_generations: 16
per_device_train_batch_size: 64
strategy: coba
min_budget: 3
max_budget: 64
strategy_options: {kappa: 15, tau: 0.2}
success_threshold: 0.9
beta: 0.01
""",
        encoding="utf-8",
    )
    (made,) = TrlParser(CobaGRPOConfig).parse_args_and_config(
        ["--config", str(path), "--max_budget", "96", "--per_prompt_weighting"]
    )
    assert (made.min_budget, made.max_budget, made.beta) == (3, 96, 0.01)
    assert made.per_prompt_weighting is True
    allocator = made.allocator_spec().build()
    assert (allocator.strategy.kappa, allocator.strategy.tau) == (15, 0.2)


def test_trl_parser_reads_options_from_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    arguments = ["--output_dir", "out", "--use_cpu", "--bf16", "false", "--activation_checkpointing", "false"]
    (made,) = TrlParser(CobaGRPOConfig).parse_args_and_config(
        [
            *arguments,
            "--strategy_options",
            json.dumps({"kappa": 13.0, "tau": None}),
        ]
    )
    strategy = made.allocator_spec().build().strategy
    assert strategy.kappa == 13.0
    assert strategy.tau is None


def test_help_can_be_printed(capsys):
    with pytest.raises(SystemExit):
        TrlParser(CobaGRPOConfig).parse_args_and_config(["--help"])
    assert "--max_budget" in capsys.readouterr().out


def test_own_strategies_and_their_options(monkeypatch):
    module = type(sys)("own_strategies")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "own_strategies", module)
    made = config(strategy="own_strategies:Own", strategy_options={"window": 5}).allocator_spec().build()
    assert type(made.strategy) is Own
    assert made.strategy.window == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_budget": 9}, r"min_budget=9, num_generations=8.*Set min_budget to 1 … 8"),
        ({"max_budget": 7}, r"max_budget=7.*max_budget to at least 8"),
        ({"min_budget": 0}, r"min_budget=0"),
        ({"min_budget": 2.5}, r"min_budget=2.5.*whole numbers"),
        ({"num_generations": None}, r"num_generations=None.*whole numbers"),
        (
            {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2},
            r"12 rollouts .*steps_per_generation=2.*no multiple of num_generations=8.*Set per_device_train_batch",
        ),
    ],
)
def test_sizes_that_do_not_fit(options, expected):
    with pytest.raises(ConfigError, match=expected):
        config(**options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strategy": "knapsack", "strategy_options": {"kappa": 15.0}}, r"'knapsack' has no option 'kappa'"),
        ({"strategy_options": {"kapa": 1.0}}, r"no option 'kapa'.*Did you mean 'kappa'"),
        ({"strategy_options": "kappa=1"}, r"strategy_options='kappa=1'.*JSON"),
        ({"strategy_options": {"kappa": -1.0}}, r"kappa=-1.0"),
        ({"strategy_options": {"estimator": "windw"}}, r"windw.*Did you mean 'window'"),
        ({"allocation_mode": "weight"}, r"mode='weight': expected one of 'rollouts', 'weights'"),
        (
            {"allocation_mode": "weights", "per_prompt_weighting": True},
            r"per_prompt_weighting=True.*allocation_mode='weights'.*expected one of them",
        ),
        ({"success_threshold": float("nan")}, r"success_threshold=nan"),
    ],
)
def test_options_that_do_not_exist_or_fit(options, expected):
    with pytest.raises(OptionError, match=expected):
        config(**options)


def test_unknown_strategy():
    with pytest.raises(UnknownStrategyError, match="Did you mean 'knapsack'"):
        config(strategy="knapsak")


def test_other_errors_of_grpo_config_come_through():
    with pytest.raises(ValueError, match="generation_batch_size") as caught:
        config(generation_batch_size=12, per_device_train_batch_size=8)
    assert not isinstance(caught.value, ConfigError)
