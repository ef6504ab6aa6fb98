"""Short in `make test`, long in `make soak`, which also prints what was survived."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# Programs that the tests start are no modules of tests.
collect_ignore_glob = (
    ["dying_train.py", "faulty_ranks.py", "fuzz_reader.py"] if find_spec("trl") else ["*.py"]
)

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "faults"), str(TESTS / "trl")]  # for the helper modules

SURVIVED = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether the long versions run."""
    return bool(os.environ.get("COBA_SOAK"))


@pytest.fixture
def survived(request: pytest.FixtureRequest) -> Any:
    """Called with what was survived, in words; `make soak` prints it."""
    rows = request.config.stash.setdefault(SURVIVED, [])
    return lambda text: rows.append((request.node.name, text))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `trl_tiny.Tiny`."""
    from trl_tiny import Tiny

    return Tiny(tmp_path_factory.mktemp("tiny"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(SURVIVED, [])
    if rows and os.environ.get("COBA_SOAK"):
        terminalreporter.section("survived")
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            terminalreporter.write_line(f"{name:<{width}}  {text}")
