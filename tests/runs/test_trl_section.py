"""The section `trl`: every field takes its type, or is refused."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig

from coba_rl.allocation import STRATEGIES
from coba_rl.errors import ConfigError
from coba_rl.hosts.trl import CobaGRPOConfig
from coba_rl.runs import trl_config
from coba_rl.runs.config import RunConfig
from coba_rl.runs.trl_settings import CHOICES, ELSEWHERE, read_settings

HINTS = typing.get_type_hints(CobaGRPOConfig)
DEFAULTS = {
    field.name: field.default if field.default is not dataclasses.MISSING else []
    for field in dataclasses.fields(CobaGRPOConfig)
    if field.name not in ELSEWHERE
}
NEED_PACKAGES = ("use_vllm", "use_liger_kernel", "deepspeed")


def kinds(name: str) -> set[Any]:
    hint = HINTS[name]
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(member) or member for member in members}


def read(name: str, value: Any) -> Any:
    return read_settings({name: value})[name]


SWITCHES = [name for name in DEFAULTS if bool in kinds(name) and name not in NEED_PACKAGES]
NUMBERS = [name for name in DEFAULTS if kinds(name) & {int, float}]
WHOLE = [name for name in NUMBERS if float not in kinds(name)]
TEXTS = [name for name in DEFAULTS if str in kinds(name) and name not in CHOICES]
TABLES = [name for name in DEFAULTS if dict in kinds(name) and name not in NEED_PACKAGES]


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_value_of_the_right_type_stays_as_it_is(name: str) -> None:
    if DEFAULTS[name] is not None:
        assert read(name, DEFAULTS[name]) == DEFAULTS[name]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_reads_text(name: str) -> None:
    for text, value in {"False": False, "false": False, "FALSE": False, "True": True, "true": True}.items():
        assert read(name, text) is value


@pytest.mark.parametrize("name", ["use_vllm", "use_liger_kernel"])
def test_a_switch_that_is_off_needs_no_package(name: str) -> None:
    assert read(name, "False") is False


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_of_no_type_of_the_field_is_refused(name: str) -> None:
    wrong: list[Any] = [float("nan")]
    if not kinds(name) & {bool, str}:
        wrong += [True, "True", "nonsense"]
    if int in kinds(name):
        wrong += [2.5] + ["2.5"] * (str not in kinds(name))
    if bool in kinds(name) and not kinds(name) & {str, int}:
        wrong += ["maybe", 2, ""]
    if not kinds(name) & {int, float, bool}:
        wrong += [7, 7.5]
    if list not in kinds(name):
        wrong += [[1, 2]]
    if name in TABLES:
        wrong += ["{broken", [1]]
    for value in wrong:
        with pytest.raises(ConfigError, match=rf"'trl\.{name}' is .*: expected"):
            read(name, value)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_reads_text(name: str) -> None:
    assert float(read(name, "3")) == 3.0


@pytest.mark.parametrize("name", TABLES)
def test_a_table_reads_json(name: str) -> None:
    assert read(name, '{"a": true}') == read(name, {"a": True}) == {"a": True}


def test_what_may_be_unset_can_be_unset() -> None:
    assert read("vllm_importance_sampling_clip_max", "none") is None
    assert read("report_to", "none") == "none"  # here it is a name


@pytest.mark.parametrize("name", ["optim_args", "run_name"])
def test_text_that_looks_like_a_number_stays_text(name: str) -> None:
    assert read(name, "2024") == "2024"
    with pytest.raises(ConfigError, match="text in quotes"):
        read(name, 2024)


def test_a_list_of_numbers() -> None:
    assert read("label_names", ["a"]) == ["a"]
    with pytest.raises(ConfigError, match="expected a list"):
        read("label_names", "a")


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_those_that_trl_names(name: str) -> None:
    field = next(field for field in dataclasses.fields(GRPOConfig) if field.name == name)
    ignored = {"sequence"} if name == "loss_type" else set()  # a value of another field
    named = set(re.findall(r"'([a-z_]+)'", field.metadata["help"])) - ignored
    alternatives = typing.get_args(CHOICES[name])
    choices = set(alternatives) if isinstance(alternatives[0], str) else set(typing.get_args(alternatives[0]))
    assert named <= choices
    assert str(field.default) in choices
    for choice in choices:
        assert choice in field.metadata["help"]
        assert read(name, choice) == choice
    with pytest.raises(ConfigError, match="expected one of"):
        read(name, "nonsense")


# --- What the run's own sections decide ---


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_field_that_is_decided_elsewhere_is_refused_with_the_place(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'trl\.{name}' cannot be set: .+") as caught:
        read_settings({name: DEFAULTS.get(name)})
    named = re.search(r"set (\w+)\.(\w+)\.", str(caught.value))
    if named:
        section, key = named.groups()
        keys = set(RunConfig.model_fields[section].annotation.model_fields)  # type: ignore[union-attr]
        if section == "allocation":
            keys |= {option.name for cls in STRATEGIES.values() for option in dataclasses.fields(cls)}
        assert key in keys


def test_every_field_that_the_run_sets_is_decided_elsewhere_or_free(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(**settings: Any) -> CobaGRPOConfig:
        given.update(settings)
        return CobaGRPOConfig(**settings)

    monkeypatch.setattr(trl_config, "CobaGRPOConfig", record)
    config = RunConfig.model_validate({"trl": {"mask_truncated_completions": "False", "beta": "0.04"}})
    args = trl_config.make_trl_config(config, Path("never"), 9)
    assert args.mask_truncated_completions is False
    assert args.beta == 0.04
    assert given.keys() - ELSEWHERE.keys() == {
        "mask_truncated_completions",
        *(
            "lr_scheduler_type",
            "weight_decay",
            "beta",
            "loss_type",
        ),  # defaults of the run that have no key of its own
        *("save_total_limit", "report_to", "disable_tqdm"),
        *("use_cpu", "bf16", "gradient_checkpointing"),
    }


def test_the_allocation_reaches_the_trainer_whole() -> None:
    allocation = {
        "strategy": "coba",
        "max_budget": 64,
        "success_threshold": 0.5,
        "mode": "weights",
        "kappa": 9.0,
    }
    config = RunConfig.model_validate({"allocation": allocation})
    args = trl_config.make_trl_config(config, Path("never"), 9)
    assert args.allocator_spec() == config.allocation.spec()


@pytest.mark.parametrize(
    ("world", "training", "message"),
    [
        ("3", {}, r"on 3 process\(es\) does not divide the 1024 rollouts"),
        ("2", {"updates_per_step": 1024}, "does not divide the 1024 rollouts"),
        ("2", {"micro_batch_size": 1024}, "does not divide the 512 rollouts that each process has"),
    ],
)
def test_sizes_that_do_not_divide_over_processes_are_refused(
    world: str, training: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    config = RunConfig.model_validate({"training": training})
    with pytest.raises(ConfigError, match=message):
        trl_config.make_trl_config(config, Path("never"), 9)


def test_sizes_are_cut_into_updates_processes_and_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = RunConfig.model_validate(
        {"training": {"updates_per_step": 4, "micro_batch_size": 32, "steps": 5}}
    )
    assert trl_config._sizes(config.training) == {
        "max_steps": 20,
        "num_generations": 16,
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 4,  # 1024 rollouts / 4 updates / 2 processes / 32
        "steps_per_generation": 16,
    }
