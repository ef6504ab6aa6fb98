"""The command line: help without torch, readable errors, and the commands that do not train."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from coba_rl.cli import main, verl_train
from coba_rl.cli.app import app
from coba_rl.files import append_jsonl, read_jsonl
from coba_rl.runs.config import RunConfig, load_config, to_toml
from coba_rl.tasks.policy import policy_path

DATA = Path(__file__).parent / "data" / "math"
HARD = str(policy_path("hard"))

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def pass_rates(tmp_path: Path) -> Path:
    file = tmp_path / "pass_rates.csv"
    file.write_text("prompt_id,pass_rate\na,0.5\nb,0.1\nc,\n")
    return file


def test_help_and_version_do_not_import_torch() -> None:
    code = (
        "import sys; from coba_rl.cli import main; main(['--help']); main(['train', '--help']); main(['--version']);"
        "assert not {'torch', 'transformers', 'trl', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", ["train", "evaluate", "allocate", "report", "warmstart", "bench", "env"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Parameters" in capsys.readouterr().out


# --- Errors ---

BAD = {
    "unknown command": (["trian"], "Did you mean"),
    "unknown option": (["evaluate", "model", "--stepps", "9"], "--stepps"),
    "no folder to evaluate": (["evaluate", "./nowhere"], "cannot be loaded"),
    "folder without weights": (["evaluate", "."], "no weights"),
    "missing file to allocate": (["allocate", "nowhere.csv", "--total", "9"], "no file 'nowhere.csv'"),
    "file of an unknown kind": (["allocate", "rates.xls", "--total", "9"], ".csv"),
    "no total": (["allocate", "rates.csv"], "total"),
    "tokens without lengths": (
        ["allocate", "rates.csv", "--total", "9", "--budget-unit", "tokens"],
        "--budget-unit needs lengths of rollouts",
    ),
    "mode of a trainer": (
        ["allocate", "rates.csv", "--total", "9", "--mode", "weights"],
        "--mode says what a trainer",
    ),
    "option with a dot too many": (["allocate", "r.csv", "--total", "9", "--kappa.x", "3"], "a dot too many"),
    "unknown task": (["evaluate", HARD, "--task", "math5000"], "Did you mean 'math500'"),
    "unknown benchmark": (["evaluate", HARD, "--task", "mth500=x.jsonl"], "Did you mean 'math500'"),
    "temperature without end": (["evaluate", HARD, "--temperature", "inf"], "temperature > 0"),
    "output in no folder": (["evaluate", HARD, "--output", "no/where.jsonl"], "there is no folder 'no'"),
    "output that is a folder": (["evaluate", HARD, "--output", "."], "is the folder '.'"),
    "report of no records": (["report", "."], "'.' holds no run records: expected metrics.jsonl"),
    "report of no folder": (["report", "nowhere"], "'nowhere' holds no run records"),
    "policy below a file": (["warmstart", "--output-dir", f"{__file__}/x"], "is no folder"),
    "study below a file": (["study", "--output-dir", f"{__file__}/x"], "is no folder"),
    "bench below a file": (["bench", "--output-dir", f"{__file__}/x"], "is no folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_gets_one_readable_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD[case]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("coba-rl: ")
    assert expected in line
    assert "Traceback" not in captured.err
    assert not list(tmp_path.iterdir()), "a mistake must leave nothing behind"


WHOLE_NUMBERS = {
    "train": ["steps", "seed"],
    "evaluate model": ["num-samples", "max-new-tokens", "batch-size", "limit", "seed"],
    "allocate rates.csv --total 9": ["min-budget", "max-budget"],
    "allocate rates.csv": ["total"],
    "study": ["steps", "workers"],
    "warmstart --output-dir policy": ["seed"],
}


def test_no_whole_number_of_a_command_is_left_out() -> None:
    for name in (command.partition(" ")[0] for command in WHOLE_NUMBERS):
        declared = {
            argument.name.removeprefix("--")
            for argument in app[name].assemble_argument_collection()
            if argument.hint in (int, int | None)
        }
        given = {
            option
            for command, options in WHOLE_NUMBERS.items()
            if command.startswith(name)
            for option in options
        }
        assert declared == given


@pytest.mark.parametrize("value", ["2.9", "2.0", "-1", "1e3", "many", "nan", "", "99999999999999999999"])
@pytest.mark.parametrize(
    ("command", "option"), [(c, o) for c, options in WHOLE_NUMBERS.items() for o in options]
)
def test_whole_numbers_are_never_rounded(
    command: str, option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), f"--{option}", value]) == 2
    line = capsys.readouterr().err
    assert f"--{option}: {value!r}, expected a whole number from" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "total", "expected"),
    [
        ("prompt_id,pass_rate\na,0.5\nb,0.5\n", "3", "expected between 4 and 256"),
        ("prompt_id,pass_rate\na,0.5\nb,0.5\n", "999", "expected between 4 and 256"),
        ("prompt_id,pass_rate\na,1.5\n", "9", "pass_rate in [0, 1]"),
        ("prompt_id,pass_rate\na,much\n", "9", "row 1: pass_rate is 'much'"),
        ("prompt_id,rate\na,0.5\n", "9", "expected pass_rate, or successes and attempts"),
        ("pass_rate\n0.5\n", "9", "expected one of the columns ['prompt_id']"),
        ("prompt_id,successes,attempts\na,3,2\n", "9", "successes ≤ attempts"),
        ("prompt_id,pass_rate\n", "9", "no rows"),
    ],
)
def test_allocate_says_what_is_wrong_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, total: str, expected: str
) -> None:
    file = tmp_path / "rates.csv"
    file.write_text(content)
    assert main(["allocate", str(file), "--total", total]) == 2
    assert expected in capsys.readouterr().err


def test_a_config_file_that_is_not_toml_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training\nsteps = 3")
    assert main(["train", str(file)]) == 2
    assert "run.toml" in capsys.readouterr().err


# --- Configuration ---


def test_the_printed_configuration_is_the_configuration(tmp_path: Path) -> None:
    overrides = {"allocation": {"strategy": "knapsack"}, "training": {"steps": 7}, "trl": {"use_vllm": True}}
    config = load_config(None, overrides)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert load_config(file, {}) == config


def test_the_shipped_configuration_has_the_papers_settings() -> None:
    config = load_config(Path("qwen2.5-7b-dapo-math"), {}).model_dump()
    training, allocation = config["training"], config["allocation"]
    assert (training["prompts_per_step"], training["rollouts_per_prompt"]) == (256, 16)
    assert (allocation["min_budget"], allocation["max_budget"]) == (2, 128)
    assert (training["clip_low"], training["clip_high"], training["learning_rate"]) == (0.2, 0.28, 1e-6)
    assert (training["max_prompt_length"], training["max_completion_length"]) == (2048, 4096)


def test_every_config_key_is_documented() -> None:
    for section in (field.annotation for field in RunConfig.model_fields.values()):
        for name, field in getattr(section, "model_fields", {}).items():
            assert field.description, f"{section.__name__}.{name} has no docstring"


# --- Commands ---


def test_allocate_gives_the_library_s_budgets(pass_rates: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocate", str(pass_rates), "--total", "48", "--json", "--strategy", "coba-paper"]) == 0
    result = json.loads(capsys.readouterr().out)
    budgets = {row["prompt_id"]: row["budget"] for row in result["budgets"]}
    assert sum(budgets.values()) == 48
    assert budgets["c"] == 16  # nothing known: the even share
    assert result["metrics"]["coba/failure_rate"] == pytest.approx(0.7)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_allocate_reads_and_writes_each_format(tmp_path: Path, kind: str, pass_rates: Path) -> None:
    first, second = tmp_path / f"first.{kind}", tmp_path / "second.jsonl"
    assert main(["allocate", str(pass_rates), "--total", "30", "--output", str(first)]) == 0
    assert main(["allocate", str(first), "--total", "30", "--output", str(second)]) == 0
    rows = list(read_jsonl(second))
    assert [row["prompt_id"] for row in rows] == ["a", "b", "c"]
    assert sum(row["budget"] for row in rows) == 30


def test_allocate_learns_from_successes_and_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "seen.jsonl"
    append_jsonl(file, [{"prompt_id": i, "successes": s, "attempts": 8} for i, s in enumerate((8, 4, 0))])
    assert main(["allocate", str(file), "--total", "24", "--strategy", "knapsack", "--json"]) == 0
    budgets = [row["budget"] for row in json.loads(capsys.readouterr().out)["budgets"]]
    assert budgets[1] > budgets[0] == 2


def test_env_lists_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["packages"]["numpy"][0].isdigit()
    assert facts["can_run"]["allocate"] == "yes"


def test_evaluate_measures_the_shipped_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "completions.jsonl"
    arguments = ["--num-samples", "4", "--limit", "128", "--json", "--output", str(output)]
    assert main(["evaluate", str(policy_path("moderate")), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    estimate = result["avg@4"]
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
    assert 0.25 < estimate["value"] < 0.45  # its model card: 0.35
    assert result["pass@4"]["value"] >= result["pass@1"]["value"]
    assert len(list(read_jsonl(output))) == 128


@pytest.mark.parametrize("name", ["aime24", "aime25", "amc23", "math500", "olympiadbench"])
def test_evaluate_reads_local_copies_of_the_benchmarks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--num-samples", "1", "--limit", "2", "--max-new-tokens", "2", "--json"]
    task = f"{name}={DATA / f'{name}.jsonl'}"
    assert main(["evaluate", str(policy_path("hard")), "--task", task, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["num_prompts"] >= 1


@pytest.mark.parametrize("options", [("--regime", "moderate"), ("--task", "string-transform")])
def test_warmstart_writes_an_ordinary_checkpoint_once(
    options: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from coba_rl.tasks.warmstart import warmstart

    monkeypatch.setattr("coba_rl.tasks.warmstart.warmstart", partial(warmstart, steps=2))
    arguments = ["warmstart", *options, "--output-dir", str(tmp_path / "policy"), "--json"]
    assert main(arguments) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["mean_pass_rate"] <= 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / "policy"))
    assert main(arguments) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--strategy", "knapsak"], "Did you mean 'knapsack'"),
        (["--steps", "2.9"], "--steps: '2.9', expected a whole number"),
        ([], "needs verl, which is not installed: pip install 'coba-rl[verl]'"),
    ],
)
def test_a_mistake_starts_no_verl(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "verl", None)
    assert verl_train.main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line
    assert not list(tmp_path.iterdir())
