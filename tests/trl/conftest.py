"""Training runs of a tiny model, for the tests of the TRL host."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("trl") else ["*.py"]

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))  # for the helper modules beside this file


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `trl_tiny.Tiny`: a model built once, and runs of a few steps with it."""
    from trl_tiny import Tiny

    return Tiny(tmp_path_factory.mktemp("tiny"))
