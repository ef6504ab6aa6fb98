"""`coba-rl evaluate`: no evaluation is lost, and what could not be judged is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coba_rl.cli import main
from coba_rl.tasks.base import Problem
from coba_rl.tasks.math import MathTask
from coba_rl.tasks.policy import policy_path

HARD = str(policy_path("hard"))
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def half_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four problems, two with answers that no verifier can read, and three right completions of each."""
    answers = ["1", "", "2", ""]
    problems = [Problem(f"[red]{i}", "What is it?", answer) for i, answer in enumerate(answers)]
    monkeypatch.setattr("coba_rl.cli.evaluate.load_problems", lambda _: (MathTask(), problems))

    def right(_: Any, __: Any, asked: list[Problem], **___: Any) -> list[list[str]]:
        return [[rf"\boxed{{{problem.answer}}}"] * 3 for problem in asked]

    monkeypatch.setattr("coba_rl.cli.evaluate.sample_completions", right)


@pytest.mark.usefixtures("half_judged")
def test_what_could_not_be_judged_is_counted_and_written_as_null(tmp_path: Path, capsys: Captured) -> None:
    output = tmp_path / "out.jsonl"
    assert main(["evaluate", HARD, "--output", str(output)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 problems, 6 attempts not judged" in shown
    records = [json.loads(line, parse_constant=pytest.fail) for line in output.read_text().splitlines()]
    assert [record["scores"] for record in records] == [[1.0] * 3, [None] * 3, [1.0] * 3, [None] * 3]


@pytest.mark.usefixtures("half_judged")
def test_json_holds_no_nan(capsys: Captured) -> None:
    assert main(["evaluate", HARD, "--limit", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert result["num_unjudged"] == 0
    assert result["avg@3"] == {"value": 1.0, "low": None, "high": None}  # one problem has no spread


@pytest.mark.usefixtures("half_judged")
def test_a_single_problem_has_no_interval(capsys: Captured) -> None:
    assert main(["evaluate", HARD, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "1.000 no interval" in " ".join(out.split())
    assert "nan" not in out


def test_answers_that_cannot_be_judged_cost_no_sampling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def no_sampling(*_: Any, **__: Any) -> None:
        pytest.fail("completions were sampled")

    problems = [Problem(str(i), "What is it?", "") for i in range(3)]
    monkeypatch.setattr("coba_rl.cli.evaluate.load_problems", lambda _: (MathTask(), problems))
    monkeypatch.setattr("coba_rl.cli.evaluate.sample_completions", no_sampling)
    assert main(["evaluate", HARD, "--output", str(tmp_path / "out.jsonl")]) == 2
    assert "none of the answers of 3 problems can be judged" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("half_judged")
def test_a_file_that_cannot_be_written_after_all_does_not_hide_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    assert main(["evaluate", HARD, "--output", str(tmp_path / "out.jsonl"), "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["num_unjudged"] == 6
    assert "No space left" in captured.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("half_judged")
def test_an_existing_file_is_not_written_over(tmp_path: Path, capsys: Captured) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("kept")
    assert main(["evaluate", HARD, "--output", str(output)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert output.read_text() == "kept"


@pytest.mark.usefixtures("half_judged")
@pytest.mark.parametrize(("has_cuda", "placed"), [(True, "auto"), (False, None)])
def test_the_model_is_placed_as_it_is_loaded(
    has_cuda: bool, placed: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Never as a whole on one GPU: it may need several."""
    given: dict[str, Any] = {}

    def load(_: str, **options: Any) -> None:
        given.update(options)
        raise OSError("no weights today")

    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    assert main(["evaluate", HARD]) == 2
    assert "no weights today" in capsys.readouterr().err
    assert given["device_map"] == placed
