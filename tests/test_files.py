"""Files that coba-rl writes and reads again, also after an editor had them in hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coba_rl.files import append_jsonl, write_atomic, write_json, write_jsonl
from coba_rl.lab.study import load_study
from coba_rl.runs.config import RunConfig, load_config, to_toml

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


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    write_atomic(file, "old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
