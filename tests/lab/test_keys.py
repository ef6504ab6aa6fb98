"""A stored run is used again only where running it again would give the same figures."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coba_rl.allocation.strategies import coba
from coba_rl.errors import CobaError
from coba_rl.lab import runner
from coba_rl.lab.config import LabConfig
from coba_rl.lab.keys import CHOSEN, PACKAGE, SOURCES, code_digest, resolved, run_digest, source_files
from coba_rl.lab.runner import run_study
from coba_rl.lab.study import Study, check_study

FOREIGN = """\
from dataclasses import dataclass
from coba_rl import Strategy
from foreign_helper import budgets

@dataclass(eq=False, kw_only=True)
class Mine(Strategy):
    name = "mine"
    def plan(self, p_P, total, low, high):
        return budgets(len(p_P), total)
"""
HELPER = """\
import numpy as np

def budgets(num, total):
    return np.full(num, total // num, dtype=np.int64)
"""
STUDY = {
    "title": "Foreign", "question": "?", "baselines": ["mine"], "seeds": [0],
    "base": {"steps": 2, "prompts_per_step": 8, "rollouts_per_prompt": 2, "train_prompts": 8, "min_budget": 1},
    "settings": {"moderate": {"regime": "moderate"}}, "arms": {"mine": {"strategy": "foreign_rule:Mine"}},
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module that strategies are loaded from, and lets it be loaded anew."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # sizes and times may be equal
        for module in ("foreign_rule", "foreign_helper"):
            sys.modules.pop(module, None)

    write("foreign_rule", FOREIGN)
    write("foreign_helper", HELPER)
    return write


def test_unchanged_code_has_the_same_key(write: Callable) -> None:
    config = LabConfig(strategy="foreign_rule:Mine")
    first = run_digest(config)
    write("foreign_rule", FOREIGN)
    assert run_digest(config) == first
    assert run_digest(LabConfig(strategy="foreign_rule:Mine", seed=1)) != first


@pytest.mark.parametrize(("name", "text"), [("foreign_rule", FOREIGN), ("foreign_helper", HELPER)])
def test_a_line_of_foreign_code_changes_the_key(write: Callable, name: str, text: str) -> None:
    config = LabConfig(strategy="foreign_rule:Mine")
    first = run_digest(config)
    write(name, f'"""What it is for."""\n{text}# why\n')
    assert run_digest(config) == first
    write(name, text + "X = 1\n")
    assert run_digest(config) != first


def test_an_estimator_of_a_foreign_module_counts(write: Callable) -> None:
    write(
        "foreign_helper",
        "from coba_rl.allocation.estimators.drift import DriftEstimator\nclass Own(DriftEstimator): ...\n",
    )
    rule = FOREIGN.replace("budgets", "Own").split("    def plan")[0].replace("Strategy", "Uniform")
    rule = rule.replace("from coba_rl import", "from coba_rl.allocation.strategies.uniform import")
    write(
        "foreign_rule",
        rule
        + "    def __post_init__(self):\n        super().__post_init__()\n        self._estimator = Own()\n",
    )
    config = LabConfig(strategy="foreign_rule:Mine")
    first = run_digest(config)
    helper = Path(sys.path[0]) / "foreign_helper.py"
    write("foreign_helper", helper.read_text(encoding="utf-8") + "X = 1\n")
    assert run_digest(config) != first


def test_the_key_holds_the_options_with_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    config, explicit = LabConfig(), LabConfig(options={"kappa": coba.Coba.kappa})
    first = run_digest(config)
    assert run_digest(explicit) == first
    for change in ({"exact_pass_rates": True}, {"mode": "weights"}, {"per_prompt_weighting": True}):
        assert run_digest(LabConfig(**change)) != first
    monkeypatch.setitem(coba.Coba.__init__.__kwdefaults__, "kappa", coba.Coba.kappa + 1.0)
    assert run_digest(config) != first
    assert run_digest(explicit) == first


@pytest.mark.parametrize(
    "changed",
    [
        "allocation/estimators/ability.py", "option_types.py", "allocation/strategies/coba.py", "lab/grpo.py", "tasks/prefix_scan.py", "tasks/policy.py",
        "policies/prefix-scan/hard/model.safetensors",
    ],
)  # fmt: skip
def test_a_line_of_the_package_changes_the_key_and_a_comment_does_not(tmp_path: Path, changed: str) -> None:
    copy = tmp_path / "coba_rl"
    files = source_files(resolved(LabConfig())[1])
    for file in files:
        target = copy / file.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    copies = tuple(copy / file.relative_to(PACKAGE) for file in files)
    assert code_digest.__wrapped__(copies, copy) == code_digest(files)
    if changed.endswith(".py"):
        _append(copy / changed, b'\n# why\ndef unused():\n    """What for."""\n')
        first = code_digest.__wrapped__(copies, copy)
        _append(copy / changed, b'    """And more."""  # of it\n')
        assert code_digest.__wrapped__(copies, copy) == first
    _append(copy / changed, b"X = 1\n")
    assert code_digest.__wrapped__(copies, copy) != code_digest(files)


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


@pytest.mark.parametrize(
    ("strategy", "files"),
    [
        ("uniform", {"uniform.py", "window.py"}),
        ("coba", {"coba.py", "ability.py", "logits.py"}),
        ("coba-paper", {"coba.py", "window.py"}),
        ("knapsack", {"knapsack.py", "window.py"}),
    ],
)
def test_of_all_rules_only_those_of_the_run_count(strategy: str, files: set[str]) -> None:
    made = source_files(resolved(LabConfig(strategy=strategy))[1])
    chosen = [file for file in made if file.parent.relative_to(PACKAGE).as_posix() in CHOSEN]
    assert sorted(file.name for file in chosen) == sorted(["base.py", "base.py", *files])


def test_all_that_a_run_computes_with_is_in_the_key() -> None:
    """Every module of the package that `lab.run` imports, however far away, except those without figures."""
    reached, waiting = set(), [PACKAGE / "lab" / "run.py"]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += _imported(file)
    rules = {file for folder in CHOSEN for file in (PACKAGE / folder).glob("*.py")}
    files = set(source_files(resolved(LabConfig())[1]))
    assert reached - files - rules == {PACKAGE / "__init__.py", PACKAGE / "errors.py"}
    for source in SOURCES:
        assert (PACKAGE / source).exists()
    outside = {"math.py", "study_report.py", "app.py", "comparison.py", "study.py"}
    assert not outside & {file.name for file in files}


def _imported(file: Path) -> list[Path]:
    names = [
        name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "coba_rl"
        for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
    ]
    bases = [PACKAGE.joinpath(*name.split(".")[1:]) for name in names]
    return [
        path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()
    ]


def test_a_study_repeats_a_run_only_when_its_code_changed(tmp_path: Path, write: Callable) -> None:
    store = tmp_path / "runs"
    run_study(_study(), store, 1, lambda *_: None)
    (first,) = store.iterdir()
    made = first.stat().st_mtime_ns
    run_study(_study(), store, 1, lambda *_: None)
    assert [file.stat().st_mtime_ns for file in store.iterdir()] == [made]
    write("foreign_helper", HELPER.replace("return", "raise RuntimeError('broken')\n    return"))
    with pytest.raises(RuntimeError, match="broken"):
        run_study(_study(), store, 1, lambda *_: None)
    assert list(store.iterdir()) == [first]


def test_code_that_changes_while_a_study_runs_leaves_no_record(tmp_path: Path, write: Callable) -> None:
    (run,) = _study().runs()
    assert run.key  # made from the code as it is now
    write("foreign_helper", HELPER + "X = 1\n")
    with pytest.raises(CobaError, match="changed while the study ran"):
        runner._work(run, tmp_path)
    assert not list(tmp_path.glob("*.json"))


def _study() -> Study:
    return check_study(STUDY, "foreign")
