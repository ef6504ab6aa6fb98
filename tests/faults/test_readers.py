"""Files that are damaged anyhow give the project's own errors: fuzzing, led by coverage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not made for this platform"),
]

SCRIPT = Path(__file__).parent / "fuzz_reader.py"


@pytest.mark.parametrize("reader", ["config", "state", "data", "allocations", "records"])
def test_no_file_crashes_its_reader(reader: str, tmp_path: Path, soak: bool, survived: Any) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    seconds = 120 if soak else 4
    done = subprocess.run(
        [sys.executable, str(SCRIPT), reader, str(corpus), f"-max_total_time={seconds}", "-max_len=4096"],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=1000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs, done.stderr[-4000:]
    assert int(runs[1]) > 15  # more than the files it starts from is a matter of speed
    survived(f"{int(runs[1]):,} damaged files in {seconds} s, corpus of {len(list(corpus.iterdir()))}")
