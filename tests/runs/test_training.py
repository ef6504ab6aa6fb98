"""A run from Python: with a task of one's own, heard of by an object of one's own, resumed and reported."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coba_rl.cli import main
from coba_rl.errors import CobaError, ConfigError, OptionError
from coba_rl.records import AllocationRecord, read_records
from coba_rl.report.records import read_run
from coba_rl.runs import RunConfig, RunFolder, load_config, train
from coba_rl.runs.config import PolicyConfig, TaskConfig, to_toml
from coba_rl.runs.progress import Progress
from coba_rl.runs.training import check
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan
from coba_rl.tasks.string_transform import StringTransform

HERE = Path(__file__).parent
SIZES = {"prompts_per_step": 8, "rollouts_per_prompt": 4, "save_every": 1}
OWN = {
    "task": {"name": "own_task:Larger", "first_heldout": 6},
    "policy": {"model": str(policy_path("hard"))},
    "training": {**SIZES, "steps": 1},
    "evaluation": {"num_samples": 2},
}


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delitem(sys.modules, "own_task", raising=False)


class Heard(Progress):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def begin(self, total: int, done: int, rollouts_per_step: int) -> None:
        self.calls.append(("begin", (total, done, rollouts_per_step)))

    def update(self, step: int, metrics: dict[str, Any]) -> None:
        self.calls.append(("update", (step, metrics["coba/success_per_prompt"])))

    def measured(self, accuracy: float | None) -> None:
        self.calls.append(("measured", accuracy))

    def end(self) -> None:
        self.calls.append(("end", None))

    def note(self, text: str) -> None:
        self.calls.append(("note", text))


@pytest.mark.trl
@pytest.mark.timeout(600)
def test_a_run_from_python_with_an_own_task_is_heard_of_resumed_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, heard = RunFolder(tmp_path / "run"), Heard()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, while training
        summary = train(load_config(None, OWN), folder, progress=heard)
        printed = capsys.readouterr()
        again = load_config(folder.config_file, {"training": {"steps": 2}})
        resumed = train(again, folder, resume=True)
    assert summary is not None
    assert (summary.rollouts, summary.heldout.num_problems) == (8 * 4, 40)
    run = read_run(folder.path)
    names = [name for name, _ in heard.calls]
    assert names == ["begin", "measured", "measured", "update", "end", "note"]
    assert heard.calls[0] == ("begin", (1, 0, 32))
    assert heard.calls[3] == ("update", (1, run.metric("coba/success_per_prompt")[0]))
    assert heard.calls[2] == ("measured", pytest.approx(summary.heldout.after.value))  # type: ignore[union-attr]
    assert str(folder.path / "report.html") in heard.calls[5][1]
    assert printed.out == ""
    assert "coba-rl" not in printed.err, "what the command line says is said by the library"

    assert resumed is not None
    assert (resumed.steps, resumed.rollouts) == (2, 2 * 8 * 4)
    assert train(again, folder, resume=True) == resumed, "a finished run is left as it is"
    given = {r.prompt_id for r in read_records(folder.allocations_file, AllocationRecord)}
    from own_task import Larger  # type: ignore[import-not-found]

    own = Larger(first_heldout=6)
    assert given <= {problem.prompt_id for problem in own.train_problems()}
    assert set(run.heldout[0].accuracy) == {problem.prompt_id for problem in own.heldout_problems()}
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "<h1>Training run: coba on own_task:Larger</h1>" in page


def test_the_configuration_of_an_own_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    config = load_config(None, OWN)
    assert config.task.options() == {"first_heldout": 6}
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "config.toml", {}) == config


def test_an_option_that_is_a_table_stays_in_its_section(tmp_path: Path) -> None:
    task = TaskConfig.model_validate({"name": "own:Task", "levels": {"easy": 1}, "size": 3})
    config = RunConfig(task=task, policy=PolicyConfig(model="m"), trl={"generation_kwargs": {"top_k": 3}})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "config.toml", {}) == config


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "own_task:Larger", "regime": "hard"}, "no option 'regime'"),
        ({"name": "own_task:Larger", "dataset": "x"}, "no option 'dataset'"),
        ({"name": "own_task:Larger", "first_held": 3}, "Did you mean 'first_heldout'"),
        ({"name": "own_task:Larger", "first_heldout": "x"}, "first_heldout='x': expected a whole number"),
        ({"name": "own_task:Smaller"}, "cannot be imported"),
        ({"name": "own_task:Problem"}, "is not a subclass of coba_rl.tasks.base.Task"),
        ({"name": "pre-scan"}, "Did you mean 'prefix-scan'"),
        ({"name": "prefix-scan", "num_trian": 3}, "Did you mean 'num_train'"),
        ({"name": "prefix-scan", "regime": "hrd"}, "Did you mean 'hard'"),
    ],
)
def test_a_mistake_in_the_task_is_found_before_anything_is_made(
    task: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = load_config(None, {**OWN, "task": task})
    with pytest.raises((OptionError, ConfigError), match=message):
        check(config, RunFolder(tmp_path / "run"))
    assert not list(tmp_path.iterdir())


def test_an_own_task_needs_a_model() -> None:
    with pytest.raises(ConfigError, match=r"task.name='own_task:Larger' needs a model: set policy.model"):
        load_config(None, {"task": {"name": "own_task:Larger"}})


def test_a_configuration_made_in_python_is_checked_like_one_from_a_file(tmp_path: Path) -> None:
    config = RunConfig()
    uneven = config.model_copy(
        update={"training": config.training.model_copy(update={"updates_per_step": 7})}
    )
    with pytest.raises(ConfigError, match="does not divide"):
        check(uneven, RunFolder(tmp_path / "run"))


def test_options_of_the_embedded_task_are_keys_of_the_section() -> None:
    from coba_rl.runs.tasks import configured_task

    config = load_config(None, {"task": {"num_train": 16, "regime": "moderate"}})
    assert configured_task(config.task) == PrefixScan(regime="moderate", num_train=16)


def test_another_embedded_task_brings_its_policy() -> None:
    from coba_rl.runs.tasks import configured_task, load_problems, policy_source

    config = load_config(None, {"task": {"name": "string-transform", "max_length": 5, "graded": True}})
    task = configured_task(config.task)
    assert task == StringTransform(max_length=5, graded=True)
    assert policy_source(config, task) == str(policy_path("hard", "string-transform"))
    assert load_problems("string-transform") == (StringTransform(), StringTransform().heldout_problems())
    with pytest.raises(
        ConfigError, match=r"task\.dataset='x' has no effect with task\.name='string-transform'"
    ):
        load_config(None, {"task": {"name": "string-transform", "dataset": "x"}})


def test_a_run_that_fails_ends_what_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coba_rl.runs import trl_run

    def fail(*_: Any, **__: Any) -> None:
        raise CobaError("no room")

    heard = Heard()
    monkeypatch.setattr(trl_run.CobaGRPOTrainer, "train", fail)
    with pytest.raises(CobaError, match="no room"):
        train(load_config(None, {"training": SIZES}), RunFolder(tmp_path / "run"), progress=heard)
    assert [name for name, _ in heard.calls] == ["begin", "end"]


def test_without_what_pages_need_a_run_is_finished_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coba_rl.runs.summary import conclude

    folder, heard, config = RunFolder(tmp_path), Heard(), RunConfig()
    folder.create(to_toml(config))
    record = AllocationRecord(1, "a", pass_rate=None, value=None, budget=4, successes=1.0, attempts=4)
    folder.log_allocations([record, replace(record, budget=8, successes=0.0, attempts=8)])
    folder.log_metrics({"step": 1, "coba/dead_groups": 0.5, "response_length/mean": 2.5})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    summary = conclude(config, folder, 3.0, heard)
    assert folder.read_summary() == summary
    assert (summary.rollouts, summary.tokens, summary.dead_groups) == (12, 30, 0.5)
    assert (summary.budget_min, summary.budget_max, summary.seconds) == (4, 8, 3.0)
    assert heard.calls == [("note", "no report: reports need matplotlib: pip install 'coba-rl[report]'")]


def test_report_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "job")
    folder.path.mkdir()
    folder.log_metrics({"step": 1, "coba/success_per_prompt": 0.5})
    for arguments, page in (
        ([], folder.path / "report.html"),
        (["--output", str(tmp_path / "p.html")], tmp_path / "p.html"),
    ):
        assert main(["report", str(folder.path), *arguments]) == 0
        assert capsys.readouterr().out == f"Page: {page}\n"
        assert "<svg" in page.read_text(encoding="utf-8")
    folder.allocations_file.write_text("{}\n")
    assert main(["report", str(folder.path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "allocations.jsonl' is damaged in line 1" in line


@pytest.mark.trl
@pytest.mark.parametrize("index", [0, 1])
def test_only_the_first_process_is_heard_of(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has a run of its own; a bar of each would be one too many."""
    from coba_rl.runs.trl_run import TrlRun

    run, heard, shown = TrlRun(load_config(None, OWN), RunFolder(tmp_path / "run")), Heard(), []
    monkeypatch.setattr(type(run._args), "process_index", property(lambda _: index))
    monkeypatch.setattr(run, "_make_trainer", lambda _: SimpleNamespace(save_model=lambda _: None))
    monkeypatch.setattr(run, "_train", lambda *arguments: shown.append(arguments[-1]) or 1.0)
    assert run.train(False, heard) == 1.0
    assert (shown[0] is heard) == (index == 0)
    assert type(shown[0]) is (Heard if index == 0 else Progress)
