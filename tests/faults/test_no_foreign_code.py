"""Nothing that is read can run code: no pickle, no remote code, no configuration but `module:Class`."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from trl_tiny import prompts

import coba_rl
from coba_rl.cli import main
from coba_rl.errors import CobaError, OptionError, StateError, UnknownStrategyError
from coba_rl.hosts.state import read_state, write_state
from coba_rl.runs.config import AllocationConfig, RunConfig, TaskConfig, load_config
from coba_rl.runs.tasks import configured_task
from coba_rl.tasks.policy import policy_path

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]

PICKLES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
SOURCES = sorted(Path(coba_rl.__file__).parent.rglob("*.py"))


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A folder that is there once foreign code has run."""
    return tmp_path / "foreign-code-ran"


def forbidden(tree: ast.AST) -> list[str]:
    """Calls and imports that would run what they read."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [f"import {name.name}" for name in node.names if name.name.partition(".")[0] in PICKLES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PICKLES:
            found.append(f"from {node.module}")
        elif isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name in ("eval", "exec", "compile", "yaml.load", "pandas.read_pickle", "torch.hub.load"):
                found.append(name)
            if name == "torch.load" and given.get("weights_only") != "True":
                found.append("torch.load")
            if (
                given.get("trust_remote_code", "False") != "False"
                or given.get("allow_pickle", "False") != "False"
            ):
                found.append(f"{name} trusts what it reads")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from dill import loads", "eval(text)", "torch.load(path)", "yaml.load(text)",
        "np.load(path, allow_pickle=True)", "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)  # fmt: skip
def test_the_search_below_finds(code: str) -> None:
    assert forbidden(ast.parse(code))


def test_no_source_unpickles_evaluates_or_trusts() -> None:
    assert len(SOURCES) > 50
    found = {str(path): forbidden(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_every_model_is_loaded_without_trust() -> None:
    """The libraries ask at the terminal where nothing is said."""
    found = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained"):
                found += 1
                first = ast.unparse(node.args[0])
                said = "trust_remote_code" in {keyword.arg for keyword in node.keywords}
                assert said or path.parts[-2] == "cpu", f"{path}: {first}"
    assert found > 0


@pytest.fixture(scope="module")
def saved(tiny: Any) -> Any:
    """A run with a checkpoint at step 2."""
    return tiny.train(data=prompts(12), save_strategy="steps", save_steps=2, max_steps=4)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_a_pickle_in_a_checkpoint_is_not_run(
    saved: Any, tiny: Any, tmp_path: Path, mark: Path, name: str
) -> None:
    checkpoint = tmp_path / "checkpoint-2"
    shutil.copytree(Path(saved.trainer.args.output_dir) / "checkpoint-2", checkpoint)
    assert (checkpoint / name).exists()
    (checkpoint / name).write_bytes(pickle.dumps(Payload(mark)))
    with suppress(Exception):  # refused, or never read
        tiny.train(data=prompts(12), resume_from=str(checkpoint), max_steps=4)
    assert not mark.exists()
    pickle.loads((checkpoint / name).read_bytes())  # noqa: S301  # the payload works
    assert mark.exists()


def test_a_pickle_for_a_state_is_refused_unread(tmp_path: Path, mark: Path) -> None:
    write_state(tmp_path, {"allocator": {}})
    for file in tmp_path.glob("coba_*"):
        file.write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(StateError, match="coba_"):
        read_state(tmp_path)
    assert not mark.exists()


@pytest.fixture
def foreign_model(tmp_path: Path, mark: Path) -> Path:
    """A model that brings its own code, as on a hub."""
    folder = tmp_path / "model"
    shutil.copytree(policy_path("hard"), folder)
    (folder / "modeling_foreign.py").write_text(
        f"__import__('os').mkdir({str(mark)!r})\nclass Config: ...\nclass Model: ...\n"
    )
    config = json.loads((folder / "config.json").read_text())
    maps = {"AutoConfig": "modeling_foreign.Config", "AutoModelForCausalLM": "modeling_foreign.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "foreign", "auto_map": maps}))
    return folder


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_code_that_comes_with_a_model_is_not_run(
    foreign_model: Path, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = {
        "train": ["train", "--model", str(foreign_model), "--output-dir", str(tmp_path / "run")],
        "evaluate": ["evaluate", str(foreign_model), "--limit", "1"],
    }
    assert main(arguments[command]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("coba-rl: ")
    assert "cannot be loaded" in line
    assert not mark.exists()


@pytest.fixture
def foreign_module(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported and shows that it was; also a data script."""
    code = f"__import__('os').mkdir({str(mark)!r})\nfrom coba_rl.allocation.strategies import Uniform\nclass Mine(Uniform): ...\n"
    (tmp_path / "foreign.py").write_text(code)
    (tmp_path / "owner" / "foreign").mkdir(parents=True)
    (tmp_path / "owner" / "foreign" / "foreign.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign", raising=False)
    return "foreign"


def test_no_text_in_a_configuration_is_code(foreign_module: str, tmp_path: Path, mark: Path) -> None:
    hostile = [
        foreign_module,
        f"{foreign_module}.py",
        f"{foreign_module}.Mine",
        f"__import__('{foreign_module}')",
    ]
    keys = [
        (section, key)
        for section, field in RunConfig.model_fields.items()
        if hasattr(field.annotation, "model_fields")
        for key in field.annotation.model_fields
    ]
    assert ("allocation", "strategy") in keys
    file = tmp_path / "run.toml"
    for section, key in [*keys, ("allocation", "estimator"), ("allocation", "solver"), ("trl", "optim")]:
        for text in hostile:
            file.write_text(f"[{section}]\n{key} = {json.dumps(text)}\n")
            with suppress(CobaError):
                configured_task(load_config(file, {}).task)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda name: AllocationConfig(strategy=name).spec().build(), UnknownStrategyError),
        (lambda name: configured_task(TaskConfig(name=name)), OptionError),
    ],
    ids=["strategy", "task"],
)
def test_only_module_and_class_name_code(
    build: Callable[[str], Any], error: type[CobaError], foreign_module: str, mark: Path
) -> None:
    with pytest.raises(error, match="Unknown"):
        build(foreign_module)
    assert not mark.exists()
    with suppress(OptionError):  # the module holds a strategy
        build(f"{foreign_module}:Mine")
    assert mark.exists()


@pytest.mark.parametrize("dataset", ["owner/foreign", "foreign.py", "owner/foreign/foreign.py"])
def test_a_data_script_is_not_run(
    foreign_module: str, mark: Path, capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    assert foreign_module in dataset
    code = main(["train", "--model", str(policy_path("hard")), "--dataset", dataset])
    assert code == 2
    assert "cannot tell how to read" in capsys.readouterr().err
    assert not mark.exists()
