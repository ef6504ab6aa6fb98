"""Studies: checked before they run, resumable, the same results however they were run."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.cli.app import main
from coba_rl.cli.study import parse_seeds
from coba_rl.errors import ConfigError
from coba_rl.lab import load_study, shipped_studies
from coba_rl.lab.measures import rank_correlation
from coba_rl.lab.study import check_study

DOCS = Path(__file__).parents[2] / "docs" / "studies.md"
SMALL = """\
title = "Small"
question = "Does it run?"
baselines = ["uniform"]
seeds = [0, 1]
show = ["mechanism", "estimates", "transitions"]
[base]
steps = 6
prompts_per_step = 512
rollouts_per_prompt = 2
min_budget = 1
evaluate_every = 3
[settings.moderate]
regime = "moderate"
[arms.uniform]
strategy = "uniform"
[arms.coba]
strategy = "coba"
[arms.even]
strategy = "uniform"
tokens_of = "coba"
"""


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_are_sound(name: str) -> None:
    study = load_study(name)
    assert len({run.key for run in study.runs()}) == len(study.runs())  # no two arms are the same
    budgets = {run.setting: run.config.rollouts for run in study.runs()}
    assert all(run.config.rollouts == budgets[run.setting] for run in study.runs())  # equal rollouts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"titel": "x"}, "Did you mean 'title'"),
        ({"baselines": ["unifrom"]}, "Did you mean 'uniform'"),
        ({"baselines": []}, "baselines"),
        ({"seeds": [1, 2, 1]}, "expected each once"),
        ({"seeds": ["a"]}, "'seeds.0' is 'a'"),
        ({"settings": {}}, "settings"),
        ({"settings": {"x": {"regim": "hard"}}}, "Did you mean 'regime'"),
        ({"settings": {"x": {"regime": "easy"}}}, "'regime' is 'easy'"),
        ({"settings": {"x": {"unsolvable": 1.5}}}, "'unsolvable' is 1.5"),
        ({"arms": {"uniform": {"strategy": "uniforn"}}}, "Did you mean 'uniform'"),
        ({"arms": {"uniform": {"options": {"kapa": 3}}}}, "kappa"),
        ({"arms": {"uniform": {"options": {"bounds": [1, 2]}}}}, "no option 'bounds'"),
        ({"base": {"max_budget": 1}}, "bounds"),
        ({"base": {"tokens_of": "coba"}}, "belongs into an arm"),
        ({"settings": {"x": {"tokens_of": "coba"}}}, "belongs into an arm"),
        ({"arms": {"uniform": {"tokens_of": "unifrom"}, "coba": {}}}, "tokens_of is 'unifrom'.*Known: coba"),
        ({"arms": {"uniform": {"tokens_of": "uniform"}}}, "tokens_of is 'uniform'"),
        ({"settings": {"x": {"unsolvable": 0.6, "solved": 0.5}}}, "'solved' is 0.5"),
    ],
)
def test_mistakes_are_named_before_anything_runs(change: dict, message: str) -> None:
    import tomllib

    with pytest.raises(ConfigError, match=message):
        check_study({**tomllib.loads(SMALL), **change}, "small")


def test_a_run_that_ends_by_tokens_follows_the_run_it_is_paired_with() -> None:
    import tomllib

    def keys(**changes: object) -> dict[str, str]:
        study = check_study({**tomllib.loads(SMALL), "seeds": [0], **changes}, "small")
        return {run.arm: run.key for run in study.runs()}

    first, plain = keys(), tomllib.loads(SMALL)["arms"]
    assert first["even"] != first["uniform"]
    changed = keys(arms={**plain, "coba": {"strategy": "coba", "options": {"kappa": 7.0}}})
    assert changed["uniform"] == first["uniform"]
    assert changed["even"] != first["even"]
    study = load_study("polarised", seeds=[10])
    for run in study.runs():
        assert (run.tokens_of is not None) == (run.arm == "uniform at coba's tokens")
        if run.tokens_of:
            assert (run.tokens_of.arm, run.tokens_of.setting, run.tokens_of.config.seed) == (
                "coba",
                run.setting,
                10,
            )


@pytest.mark.parametrize("name", ["main", "robustness", "polarised"])
def test_the_comparisons_that_are_shown_first_state_equal_tokens_too(name: str) -> None:
    study = load_study(name)
    assert [run.config.strategy for run in study.runs() if run.tokens_of] == ["uniform"] * (
        len(study.seeds) * len(study.settings)
    )


def test_a_study_without_its_packages_says_so_before_it_runs(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scipy" else find(name))
    assert main(["study", "main", "--output-dir", str(tmp_path / "out")]) == 2
    assert "a study needs scipy, which is not installed: pip install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_study_that_was_stopped_goes_on_and_ends_the_same(tmp_path: Path, capsys) -> None:
    config = tmp_path / "small.toml"
    config.write_text(SMALL, encoding="utf-8")
    folder = tmp_path / "out" / "small"
    command = ["study", str(config), "--output-dir", str(folder.parent), "--workers", "2", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    table = (folder / "results.csv").read_text(encoding="utf-8")
    files = sorted((folder.parent / "runs").iterdir())
    assert len(files) == 6
    kept = files[0].stat().st_mtime_ns
    for file in files[1:]:
        file.unlink()
    assert main(command) == 0
    assert files[0].stat().st_mtime_ns == kept  # not run again
    assert (folder / "results.csv").read_text(encoding="utf-8") == table
    second = json.loads(capsys.readouterr().out)
    assert {**first, "processor_seconds": 0} == {**second, "processor_seconds": 0}
    _check_table(folder, table)
    _check_the_same_from_python(config, folder)
    files[0].write_text('{"version": 1, "curve": [[0', encoding="utf-8")
    assert main(command) == 2
    assert f"{files[0].name} is damaged" in capsys.readouterr().err


def _check_the_same_from_python(config: Path, folder: Path) -> None:
    """The example of docs/studies.md, with this study and its folders, writes the same files."""
    files = [folder / name for name in ("results.csv", "comparisons.csv", "summary.json", "report.html")]
    before = [file.read_bytes() for file in files]
    shutil.rmtree(folder)
    found = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    code = found[1].replace('"main"', repr(str(config))).replace("runs/studies/main", str(folder))
    script = config.with_name("script.py")
    script.write_text(code.replace("runs/studies", str(folder.parent)).replace('"hard"', '"moderate"'))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Estimate(value=")
    assert [file.read_bytes() for file in files] == before


def _check_table(folder: Path, table: str) -> None:
    rows = list(csv.DictReader(table.splitlines()))
    fixed = [row for row in rows if row["arm"] != "even"]
    assert len(fixed) == 4 * 3
    assert {int(row["rollouts"]) for row in fixed} == {0, 3 * 1024, 6 * 1024}
    _check_tokens(rows)
    final = [float(row["accuracy"]) for row in rows if row["arm"] == "coba" and row["step"] == "6"]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    shown = next(arm for arm in summary["arms"] if arm["arm"] == "coba")["final"]["value"]
    assert shown == pytest.approx(np.mean(final))
    assert final[0] != final[1]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<figure>") >= 6
    assert "Held-out accuracy by tokens" in page
    for made in (page, (folder / "tables.md").read_text(encoding="utf-8"), summary["made_by"]):
        assert "Made by coba-rl" in made


def _check_tokens(rows: list[dict[str, str]]) -> None:
    spent = {(row["arm"], row["seed"]): (int(row["rollouts"]), int(row["tokens"])) for row in rows}
    for seed in "01":
        assert spent["uniform", seed][0] == spent["coba", seed][0]
        assert spent["uniform", seed][1] != spent["coba", seed][1]
        beyond = spent["even", seed][1] - spent["coba", seed][1]
        assert 0 <= beyond < spent["even", seed][1] / 6  # less than a step too many


@pytest.mark.parametrize(
    "arguments",
    [["study", "mian"], ["study", "--seeds", "x"], ["study", "--workers", "-1"], ["study", "nofile.toml"]],
)
def test_mistakes_on_the_command_line_exit_2(arguments: list[str], capsys) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("coba-rl: ")
    assert "\n" not in error


def test_the_list_names_every_shipped_study(capsys) -> None:
    assert main(["study", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in shipped_studies())


def test_seeds_are_read_as_lists_and_ranges() -> None:
    assert parse_seeds("3, 10-12") == [3, 10, 11, 12]
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds("1-")


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=12))
def test_rank_correlation_is_the_correlation_of_ranks(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    ranks = [[(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v] for v in (a, b)]
    if len(set(a.tolist())) > 1 and len(set(b.tolist())) > 1:
        assert rank_correlation(a, b) == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-9)
    else:
        assert np.isnan(rank_correlation(a, b))


def test_an_interrupted_study_says_how_to_go_on(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(SMALL.replace("steps = 6", "steps = 2000"), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "coba_rl.cli",
        "study",
        str(config),
        "--output-dir",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's background job ignores
    )  # fmt: skip
    try:
        wait_until((tmp_path / "out" / "runs").exists)
        time.sleep(5.0)  # into the runs
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 130
    assert "the same command goes on" in error
    assert "Traceback" not in error


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen within a minute")
