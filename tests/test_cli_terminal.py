"""What the terminal gets: text that stays text, plain lines where no bar can be drawn, and a word at the end."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from coba_rl.cli import main
from coba_rl.cli.progress import TrainingProgress, counting
from coba_rl.cli.study import StudyProgress
from coba_rl.cli.tables import print_json, print_table
from coba_rl.files import append_jsonl
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.study import check_study
from coba_rl.report.study_files import markdown_tables
from coba_rl.tasks.policy import policy_path

HARD = str(policy_path("hard"))
Captured = pytest.CaptureFixture[str]
STUDY = {
    "title": "[b]Coins[/b]",
    "question": "Which?",
    "baselines": ["[red]x"],
    "seeds": [0],
    "settings": {"[/b]": {}},
    "arms": {"[red]x": {"strategy": "uniform"}, "a|b <i>$x$ :smile:": {"strategy": "coba"}},
    "base": {"steps": 20},
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "coba_rl.cli", *arguments]


# --- Ids and names are text ---

HOSTILE = ["[red]x", "[/b]", ":smile:", "[link=http://x]y", "\\[b]", "a\x1b[2Jb", "a\rb", "\ud800", "奖励"]


def test_names_in_tables_are_text(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    print_table("[/b] " + HOSTILE[0], HOSTILE, [HOSTILE])
    out = capsys.readouterr().out
    for name in HOSTILE:
        assert out.count("".join(c if c.isprintable() else repr(c)[1:-1] for c in name)) >= 2
    assert "\x1b" not in out


def test_ids_of_prompts_are_text(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "rates.jsonl"
    append_jsonl(file, [{"prompt_id": name, "pass_rate": 0.5} for name in HOSTILE[:5]])
    assert main(["allocate", str(file), "--total", "40"]) == 0
    out = capsys.readouterr().out
    for name in HOSTILE[:5]:
        assert name in out


def test_names_of_arms_are_text_in_bars_and_in_markdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = terminal(monkeypatch, "xterm")
    study = check_study(STUDY, "coins")
    runs = study.runs()
    with StudyProgress() as progress:
        for step in (1, 2):
            for run in runs:
                progress.update(run, step, len(runs))
    shown = stream.getvalue()
    for run in runs:
        assert run.arm[:8] in shown


def test_an_arm_breaks_no_table_of_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    study = check_study(STUDY, "coins")
    rows = [["a|b <i>$x$", "1"]]
    monkeypatch.setattr("coba_rl.report.study_files.comparison_rows", lambda *_: (["[/b]", "final"], rows))
    monkeypatch.setattr(StudyResults, "groups", {"[/b]": []})
    monkeypatch.setattr("coba_rl.report.study_files.summary_tables", lambda _: [])
    plan = StudyPlan(study, lambda _: None)  # what it says is in the rows above
    *_, row = markdown_tables(StudyResults(plan, "")).splitlines()
    assert row == r"| a\|b \<i>\$x\$ | 1 |"


def test_json_holds_only_numbers_that_json_knows(capsys: Captured) -> None:
    print_json({"a": [float("nan"), 1.5], "b": (float("inf"), {"c": -float("inf")})})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [None, 1.5],
        "b": [None, {"c": None}],
    }


# --- Progress ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, kind: str) -> io.StringIO:
    """Make standard error a terminal of a kind."""
    stream = Terminal()
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr("sys.stderr", stream)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return stream


def work(name: str) -> list[str]:
    """Do one piece of work with progress; the lines a terminal without bars has to get."""
    if name == "training":
        progress = TrainingProgress()
        progress.begin(40, 0, 64)
        for done in (0, 100, 200):
            progress.measuring(done, 200)
        for step in range(1, 41):
            progress.update(step, {"coba/alpha": 2.0})
        progress.end()
        return ["held-out completions 100/200", "step 40/40"]
    if name == "counting":
        with counting("completions") as count:
            for done in range(0, 201, 5):
                count(done, 200)
        return ["completions 20/200", "completions 200/200"]
    study = check_study(STUDY, "coins")
    with StudyProgress() as progress:
        for run in study.runs():
            for step in range(1, 21):
                progress.update(run, step, study.num_runs)
    return ["2/2 runs"]


@pytest.mark.parametrize("name", ["training", "counting", "study"])
def test_a_dumb_terminal_gets_plain_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch, "dumb")
    expected = work(name)
    written = stream.getvalue()
    assert not re.search(r"[\x1b\r]", written)
    for line in expected:
        assert line in written
    assert 1 < len(written.splitlines()) <= 14


@pytest.mark.parametrize("name", ["training", "counting", "study"])
def test_another_terminal_gets_a_bar(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, "xterm")
    started: list[Progress] = []
    start = Progress.start
    monkeypatch.setattr(Progress, "start", lambda self: (started.append(self), start(self))[1])
    work(name)
    assert [bar.disable for bar in started] == [False]


# --- A pipe that is closed, a disk that is full ---


@pytest.mark.parametrize(
    "arguments", [["--help"], ["env", "--json"], ["study", "--list"], ["train", "--help"]]
)
def test_a_closed_pipe_is_silent(arguments: list[str]) -> None:
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # what `| head` does, at the latest possible moment
    assert process.stderr.read() == ""
    assert process.wait(60) == 1
    process.stderr.close()


@pytest.mark.parametrize("arguments", [["env", "--json"], ["study", "--list"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "No space left" in line


def test_a_terminal_that_lacks_signs_gets_their_codes() -> None:
    environment = {
        "PYTHONIOENCODING": "ascii",
        "PATH": "",
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
    }
    done = subprocess.run(
        command("study", "--list"), env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


# --- Interrupted ---


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_evaluation_says_that_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("coba_rl.cli.evaluate.sample_completions", interrupt)
    assert main(["evaluate", HARD]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coba-rl: interrupted. Nothing was kept")


def test_an_interrupted_study_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("coba_rl.lab.run_study", interrupt)
    assert main(["study", "--output-dir", str(tmp_path)]) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"Finished runs are kept in {str(tmp_path)!r}: the same command goes on." in line


def test_a_run_interrupted_before_it_began_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("coba_rl.runs.trl_run.CobaGRPOTrainer", interrupt)
    assert main(["train", "--output-dir", str(tmp_path / "run")]) == 130
    assert "interrupted. Nothing was written yet." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.trl
def test_an_interrupted_run_goes_on_by_the_command_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    small = [
        "--training.prompts_per_step",
        "8",
        "--training.rollouts_per_prompt",
        "4",
        "--evaluation.num_samples",
        "1",
    ]
    arguments = ["train", "--output-dir", str(folder), "--steps", "200", "--training.save_every", "1", *small]
    process = subprocess.Popen(
        command(*arguments),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # which a shell's background job ignores
    )
    deadline = time.monotonic() + 240
    while not list(folder.glob("checkpoints/*/COMPLETE")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    found = re.search(r"coba-rl: interrupted\. Go on from step (\d+) with: (coba-rl .+)$", error.strip())
    assert found, error
    assert 1 <= int(found[1]) < 200
    program, *again = shlex.split(found[2])
    assert program == "coba-rl"
    last = str(int(found[1]) + 1)
    done = subprocess.run(
        command(*again, "--steps", last, "--json"), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == int(last)
