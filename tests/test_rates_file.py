"""`coba-rl allocate` and its files: what can be read, what is refused, what is written."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coba_rl.allocation import Allocation
from coba_rl.cli import main
from coba_rl.errors import DatasetError
from coba_rl.files import read_jsonl
from coba_rl.rates import read_rates, write_budgets

SURROGATE = '"\\ud83d"'


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line of a command that is refused."""
    assert main(["allocate", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


# --- Reading ---

SPELLED = {
    "rates.CSV": 'Prompt ID," Pass-Rate "\na,0.5\nb,\n',
    "rates.csv": "unread,promptId,PASS_RATE,unread\n,a,.5,\n,b,nan,\n",
    "rates.JSONL": '{"Prompt_ID": "a", "pass_rate": 0.5}\n\n{"prompt_id": "b", "Pass Rate": null}\n',
    "rates.json": '[{"prompt_id": "a", "pass_rate": "5e-1"}, {"prompt_id": "b", "pass_rate": NaN}]',
}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", SPELLED)
def test_marks_ends_case_and_spelling_change_nothing(tmp_path: Path, name: str, end: str, mark: str) -> None:
    (tmp_path / name).write_bytes((mark + SPELLED[name]).replace("\n", end).encode())
    rates = read_rates(tmp_path / name)
    assert rates.prompt_ids == ["a", "b"]
    assert np.array_equal(rates.pass_rate_P, [0.5, np.nan], equal_nan=True)


def test_columns_of_parquet_are_found_however_spelled_and_typed(tmp_path: Path) -> None:
    file = parquet(
        tmp_path / "rates.PARQUET",
        **{
            "Prompt ID": [Decimal(7), Decimal(2**70)],
            "Successes": np.float32([1.0, 4.0000002]),
            "ATTEMPTS": np.uint8([4, 4]),
        },
    )
    rates = read_rates(file)
    assert rates.prompt_ids == [7, 2**70]
    assert rates.visits.successes_P.tolist() == [1.0, 4.0]
    decimals = parquet(tmp_path / "decimals.parquet", prompt_id=["a"], pass_rate=[Decimal("0.25")])
    assert read_rates(decimals).pass_rate_P.tolist() == [0.25]
    rounded = parquet(tmp_path / "rounded.parquet", prompt_id=["a", "b"], pass_rate=[1.0000001, np.nan])
    assert np.array_equal(read_rates(rounded).pass_rate_P, [1.0, np.nan], equal_nan=True)


def test_text_ids_stay_text_and_numbers_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("prompt_id,pass_rate\n0_1,0\n007,1\n")
    assert read_rates(tmp_path / "ids.csv").prompt_ids == ["0_1", "007"]
    (tmp_path / "ids.jsonl").write_text(
        '{"prompt_id": 1, "pass_rate": 0}\n{"prompt_id": "1", "pass_rate": 1}\n'
    )
    assert read_rates(tmp_path / "ids.jsonl").prompt_ids == [1, "1"]


WRONG = {
    "surplus cells": ("csv", "prompt_id,pass_rate\na,0,1\n", "line 2 of .* has 3 cells, the header 2.*decimals with"),
    "missing cells": ("csv", "prompt_id,pass_rate\na,0.5\nb\n", "line 3 of .* has 1 cells, the header 2"),
    "a column twice": ("csv", "prompt_id,pass_rate,pass_rate\na,0,1\n", "has 'pass_rate' twice"),
    "a column twice, spelled otherwise": ("csv", "prompt_id,pass_rate,Pass Rate\na,0,1\n", "twice, as 'pass_rate' and"),
    "a key twice": ("jsonl", '{"prompt_id": "a", "pass_rate": 0, "pass_rate": 1}\n', "the key 'pass_rate' stands there"),
    "an underscore": ("csv", "prompt_id,pass_rate\na,0_1\n", "row 1: pass_rate is '0_1', expected a number"),
    "a decimal comma": ("csv", 'prompt_id,pass_rate\na,"0,5"\n', "pass_rate is '0,5', .*decimals with a point"),
    "digits of another script": ("csv", "prompt_id,pass_rate\na,\u0661\n", "expected a number"),
    "too large a number": ("csv", "prompt_id,pass_rate\na,1e999\n", "pass_rate is '1e999', expected a number"),
    "a percentage": ("csv", "prompt_id,pass_rate\na,50\n", r"50.0 lies outside \[0, 1\]"),
    "true": ("jsonl", '{"prompt_id": "a", "pass_rate": true}', "pass_rate is True, expected a number"),
    "counts in halves": ("csv", "prompt_id,successes,attempts\na,1,2.5\n", "whole attempts"),
    "negative counts": ("csv", "prompt_id,successes,attempts\na,0,-1\n", "whole attempts"),
    "successes without attempts": ("csv", "prompt_id,successes,attempts\na,1,0\n", "0 ≤ successes ≤ attempts"),
    "an unknown count": ("csv", "prompt_id,successes,attempts\na,1,\n", "row 1: attempts is '', expected a number"),
    "half a character": ("jsonl", f'{{"prompt_id": {SURROGATE}, "pass_rate": 0}}', "line 1 of .* holds half a character"),
    "another text encoding": ("csv", b"prompt_id,pass_rate\n\xe4,0\n", "cannot read .*save it as UTF-8"),
    **{
        f"an id that is {name}": ("jsonl", f'{{"prompt_id": {value}, "pass_rate": 0}}', "row 1 has the prompt_id .*: expected")
        for name, value in {"a fraction": "1.0", "true": "true", "a list": "[1]", "an object": "{}", "null": "null", "empty": '""'}.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    kind, content, expected = WRONG[case]
    file = tmp_path / f"rates.{kind}"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DatasetError, match=expected):
        read_rates(file)
    assert refused(capsys, file, "--total", 16, "--output", tmp_path / "out.csv").startswith("coba-rl: ")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_ids_of_bytes_are_refused_in_parquet(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="row 1 has the prompt_id b'a'"):
        read_rates(parquet(tmp_path / "rates.parquet", prompt_id=[b"a"], pass_rate=[0.5]))


# --- Writing ---


def allocation(*ids: str | int) -> Allocation:
    return Allocation(list(ids), np.arange(2, 2 + len(ids)), np.full(len(ids), np.nan))


IDS: dict[str, tuple[tuple[str | int, ...], list[str | int]]] = {
    "text": (("a", "b"), ["a", "b"]),
    "whole numbers": ((1, -(2**63)), [1, -(2**63)]),
    "huge whole numbers": ((1, 2**63), ["1", "9223372036854775808"]),
    "numbers beside text": ((1, "a"), ["1", "a"]),
    "one id in two rows": (("a", "a"), ["a", "a"]),
}


@pytest.mark.parametrize("case", IDS)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".PARQUET"])
def test_every_id_is_written(tmp_path: Path, case: str, suffix: str) -> None:
    ids, as_read = IDS[case]
    file = tmp_path / f"out{suffix}"
    write_budgets(file, allocation(*ids))
    if suffix == ".jsonl":
        assert [row["prompt_id"] for row in read_jsonl(file)] == list(ids)
    elif suffix == ".csv":
        with file.open(newline="") as text:
            assert [row["prompt_id"] for row in csv.DictReader(text)] == [str(i) for i in ids]
    else:
        rows = pq.read_table(file).to_pylist()
        assert [row["prompt_id"] for row in rows] == as_read
        assert [(row["pass_rate"], row["budget"]) for row in rows] == [(None, 2), (None, 3)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_that_would_be_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    file = tmp_path / "rates.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt_id": i, "pass_rate": 0.5}) + "\n" for i in (1, "1", 2**70, str(2**70)))
    )
    line = refused(capsys, file, "--total", 64, "--output", tmp_path / f"out{suffix}")
    assert f"The prompts 1 and '1' would be one in 'out{suffix}': write a .jsonl file" in line
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert main(["allocate", str(file), "--total", "64", "--output", str(tmp_path / "out.jsonl")]) == 0
    assert [row["prompt_id"] for row in read_jsonl(tmp_path / "out.jsonl")] == [1, "1", 2**70, str(2**70)]


@pytest.mark.parametrize(
    ("output", "expected"), [("out.xls", "ends in .csv"), ("no/where/out.csv", "no folder .*where")]
)
def test_an_output_that_cannot_be_written_is_refused_before_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, expected: str
) -> None:
    line = refused(capsys, "nowhere.csv", "--total", 8, "--output", tmp_path / output)
    assert "nowhere.csv" not in line
    assert expected.split(".*")[-1] in line


def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rates.csv"
    file.write_text("prompt_id,pass_rate\na,0.5\n")
    for option, expected in (
        ("--kapa", "--kapa=0.5: strategy 'coba' has no such option. Did you mean 'kappa'?"),
        ("--success-threshold", "leave it out"),
    ):
        assert expected in refused(capsys, file, "--total", 8, option, 0.5)
