"""Checkpoints: going on from one equals never having stopped, and damaged files are named."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl_tiny import prompts

from coba_rl.allocation import BudgetAllocator
from coba_rl.errors import StateError
from coba_rl.hosts.session import BudgetSession
from coba_rl.hosts.state import STATE_FILE, read_state, write_state
from coba_rl.hosts.trl.sampler import inside_generation_window

# pytest.warns hands other warnings on under another module, past the filters of the suite.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SAVED: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 4,
    "max_steps": 8,
    "min_budget": 1,
    "max_budget": 12,
}

CASES: dict[str, dict[str, Any]] = {
    "second epoch, shuffled": {},
    "second epoch, in order": {"shuffle_dataset": False},
    "end of an epoch": {"size": 16},
    "fourth epoch": {"size": 4},
    "two iterations": {"num_iterations": 2, "size": 8},
    "accumulation": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "several steps a generation": {"per_device_train_batch_size": 8, "steps_per_generation": 2, "size": 8},
    "calendar": {"strategy": "linear-decay"},
    "weights": {"allocation_mode": "weights"},
    "tokens": {"budget_unit": "tokens"},
    "paper": {"strategy": "coba-paper"},
    "stream": {"stream": True, "size": 16},
}


def checkpoint_of(run: Any, step: int = 4) -> Path:
    return Path(run.trainer.args.output_dir) / f"checkpoint-{step}"


@pytest.mark.trl
@pytest.mark.parametrize("case", CASES)
def test_resume_equals_no_interruption(tiny, case):
    options = {**SAVED, **CASES[case]}
    size, as_stream = options.pop("size", 12), options.pop("stream", False)

    def data() -> Any:
        return prompts(size).to_iterable_dataset() if as_stream else prompts(size)

    straight = tiny.train(data=data(), **options)
    resumed = tiny.train(data=data(), resume_from=str(checkpoint_of(straight)), **options)

    assert 0 < len(resumed.records) < len(straight.records)
    assert resumed.records == straight.records[-len(resumed.records) :]
    assert resumed.losses == straight.losses[4:]
    assert resumed.grad_norms == straight.grad_norms[4:]
    for name, value in straight.weights.items():
        assert torch.equal(value, resumed.weights[name]), name
    assert resumed.trainer.allocator.state_dict() == straight.trainer.allocator.state_dict()


@pytest.fixture(scope="module")
def saved(tiny) -> Any:
    """A run with checkpoints at steps 4 and 8."""
    return tiny.train(data=prompts(12), **SAVED)


@pytest.fixture
def checkpoint(saved, tmp_path) -> Path:
    """A copy of the checkpoint of step 4 that a test may spoil."""
    source, target = checkpoint_of(saved), tmp_path / "checkpoint-4"
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.trl
def test_a_checkpoint_holds_the_state_of_its_step(saved):
    state = read_state(checkpoint_of(saved, 8))
    assert state is not None
    resumed = saved.trainer.args.allocator_spec().build()
    resumed.load_state_dict(state["allocator"])
    assert resumed.state_dict() == saved.trainer.allocator.state_dict()
    assert read_state(checkpoint_of(saved, 4))["allocator"]["step"] == 4
    assert [path.name for path in checkpoint_of(saved).glob("*coba*")] == [STATE_FILE]


@pytest.mark.trl
def test_no_state_file_is_a_warning(tiny, checkpoint):
    (checkpoint / STATE_FILE).unlink()
    with pytest.warns(UserWarning, match=r"has no coba_state\.npz: training goes on"):
        resumed = tiny.train(data=prompts(12), resume_from=str(checkpoint), **SAVED)
    assert len(resumed.records) == 4
    assert resumed.trainer.allocator.state_dict()["step"] == 4


SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "newer": ({"version": 99}, "has version 99"),
    "of a newer allocator": ({"allocator": {"version": 99}}, "version 99"),
    "foreign": ({"allocator": {"version": 2, "strategy": "gvm"}}, "saved by strategy 'gvm'"),
    "incomplete": ({"settings": None}, "not iterable"),
}


@pytest.mark.trl
@pytest.mark.parametrize("kind", SPOILT)
def test_a_state_that_does_not_fit_is_named(tiny, checkpoint, kind):
    change, expected = SPOILT[kind]
    write_state(checkpoint, {**read_state(checkpoint), **change})
    with pytest.raises(StateError, match=expected) as caught:
        tiny.train(data=prompts(12), resume_from=str(checkpoint), **SAVED)
    assert str(checkpoint / STATE_FILE) in str(caught.value)


@pytest.mark.trl
def test_another_group_size_is_announced(tiny, checkpoint):
    with pytest.warns(UserWarning, match="num_generations was 4 when the checkpoint was saved and is 2 now"):
        resumed = tiny.train(data=prompts(12), resume_from=str(checkpoint), **{**SAVED, "num_generations": 2})
    assert {sum(step.values()) for step in resumed.budgets} == {16}
    assert {len(step) for step in resumed.budgets} == {8}


@pytest.mark.trl
def test_other_prompts_are_announced(tiny, checkpoint):
    texts = [*prompts(12)["prompt"][:9], "a=", "b=", "ab="]
    lost, amid_epoch = "3 of 12 prompts with a history are not in the training data", "some not at all"
    with pytest.warns(UserWarning, match=lost), pytest.warns(UserWarning, match=amid_epoch):
        tiny.train(data=Dataset.from_dict({"prompt": texts}), resume_from=str(checkpoint), **SAVED)


@pytest.mark.trl
@pytest.mark.parametrize(("step", "is_amid_epoch"), [(4, True), (6, False)])
def test_reordered_prompts_keep_their_histories(tiny, step, is_amid_epoch):
    """An epoch has three steps."""
    options = {**SAVED, "save_steps": 2}
    checkpoint = checkpoint_of(tiny.train(data=prompts(12), **options), step)
    data = Dataset.from_dict({"prompt": prompts(12)["prompt"][::-1]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        run = tiny.train(data=data, resume_from=str(checkpoint), **options)
    said = [str(warning.message) for warning in caught if "visited twice" in str(warning.message)]
    assert len(said) == is_amid_epoch
    assert all("some prompts are visited twice and some not at all" in line for line in said)
    first = {record.prompt_id: record.pass_rate for record in run.records[0]}
    session = BudgetSession(BudgetAllocator("coba", bounds=(1, 12)))
    session.load(checkpoint)
    assert list(first.values()) == session.allocator.strategy.pass_rates(list(first)).tolist()


@pytest.mark.trl
def test_a_checkpoint_inside_a_generation_window_is_announced(tiny):
    options = {**SAVED, "save_steps": 3, "num_iterations": 2}
    saved = tiny.train(data=prompts(12), **options)
    with pytest.warns(UserWarning, match="step 3 lies inside a generation window of 2.*multiple of 2"):
        tiny.train(data=prompts(12), resume_from=str(checkpoint_of(saved, 3)), **options)


@pytest.mark.trl
def test_only_the_process_that_saves_writes(tiny, monkeypatch):
    run = tiny.trainer(**{**SAVED, "max_steps": 4})
    monkeypatch.setattr(type(run.trainer.args), "should_save", property(lambda self: False))
    run.trainer.train()
    assert not (checkpoint_of(run) / STATE_FILE).exists()


@pytest.mark.parametrize(
    ("step", "accumulation", "window", "advice"),
    [(3, 1, 2, "multiple of 2"), (1, 2, 6, "multiple of 3"), (2, 1, 6, "multiple of 6"), (6, 1, 6, None)],
)
def test_advice_where_to_save(step, accumulation, window, advice):
    messages = inside_generation_window(step, accumulation, window)
    assert (advice is None) == (messages == [])
    if advice:
        assert advice in messages[0]
