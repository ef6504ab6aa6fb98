"""Files that coba-rl writes and reads again, also after an editor had them in hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coba_rl.cli.config import RunConfig, load_config, to_toml
from coba_rl.cli.run_folder import RunFolder
from coba_rl.files import append_jsonl, read_jsonl, write_json, write_jsonl
from coba_rl.lab.study import load_study
from coba_rl.report.records import read_run

MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put first."""

RECORD: dict[str, Any] = {"step": 1, "loss": math.nan, "all": [math.inf, {"low": -math.inf}, (1.5, math.nan)]}
PLAIN = {"step": 1, "loss": None, "all": [None, {"low": None}, [1.5, None]]}


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("writer", [append_jsonl, write_jsonl, write_json])
def test_what_json_does_not_have_is_null(writer: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    writer(file, RECORD if writer is write_json else [RECORD])
    assert strict(file.read_text()) == PLAIN


def test_a_run_folder_has_no_nan_also_after_a_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create("")
    folder.log_metrics(RECORD)
    folder.log_allocations([RECORD])
    (folder.checkpoints / "checkpoint-1").mkdir()
    folder.mark_complete(folder.checkpoints / "checkpoint-1", 1)
    folder.reopen("")
    folder.write_summary({"steps": 1, "loss": math.nan})
    for file in (folder.metrics_file, folder.allocations_file, folder.summary_file):
        assert strict(file.read_text())["step" if file.suffix == ".jsonl" else "steps"] == 1


def test_a_byte_order_mark_changes_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "RUN.TOML"
    file.write_bytes(MARK + to_toml(RunConfig()).replace("\n", "\r\n").encode())
    assert load_config(file, {}) == load_config(None, {})


def test_a_byte_order_mark_changes_no_study(tmp_path: Path) -> None:
    import coba_rl.lab

    shipped = Path(coba_rl.lab.__file__).parents[1] / "configs" / "studies" / "main.toml"
    marked = tmp_path / "main.toml"
    marked.write_bytes(MARK + shipped.read_bytes())
    assert load_study(str(marked)) == load_study("main")


def test_byte_order_marks_in_a_run_folder_change_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create("[training]\nsteps = 3\n")
    folder.log_metrics({"step": 1, "loss": 0.5})
    folder.write_summary({"steps": 1})
    before = read_run(folder.path)
    for file in (folder.config_file, folder.metrics_file, folder.summary_file):
        file.write_bytes(MARK + file.read_bytes())
    after = read_run(folder.path)
    assert after.metrics == before.metrics == [{"step": 1, "loss": 0.5}]
    assert after.config == before.config == {"training": {"steps": 3}}
    assert after.summary == folder.read_summary() == {"steps": 1}
    assert list(read_jsonl(folder.metrics_file)) == after.metrics
