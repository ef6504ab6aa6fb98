"""Reward functions and data in verl's layout, and the examples in the host's docstrings."""

from __future__ import annotations

import doctest
import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from coba_rl.errors import DatasetError
from coba_rl.hosts.verl import rewards
from coba_rl.hosts.verl.data import to_row, write_parquet
from coba_rl.hosts.verl.prompts import BY_INDEX, PromptIds
from coba_rl.tasks.base import Problem, content_id

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

RECIPES = Path(__file__).parents[2] / "recipes" / "verl"


def test_rewards_tell_wrong_from_unjudged() -> None:
    assert rewards.math("s", r"\boxed{\frac{1}{2}}", "0.5") == {"score": 1.0, "acc": 1.0}
    assert rewards.math("s", r"\boxed{3}", "0.5") == {"score": 0.0, "acc": 0.0}
    unjudged = rewards.math("s", r"\boxed{3}", "")
    assert unjudged["score"] == 0.0
    assert math.isnan(unjudged["acc"])
    assert rewards.prefix_scan("s", "12", "127") == {"score": 0.0, "acc": 0.0}


def test_written_data_is_identified_by_index(tmp_path: Path) -> None:
    import datasets

    problems = [Problem(content_id(text), text, "1", "sums") for text in ("a", "b")]
    path = tmp_path / "new" / "train.parquet"
    assert write_parquet([to_row(problem, "train") for problem in problems], path) == 2
    frame = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    ids = PromptIds.choose(type("Data", (), {"dataframe": frame}))
    assert ids.scheme == BY_INDEX
    assert ids.of(frame["data_source"], frame["extra_info"], frame["prompt"]) == [
        f"sums/{problem.prompt_id}" for problem in problems
    ]
    with pytest.raises(DatasetError, match="no problems"):
        write_parquet([], path)


def test_the_data_script_keeps_benchmarks_out_of_the_training_data(tmp_path: Path) -> None:
    import json

    shared = {"problem": "What is 1+1?", "answer": "2"}
    train = [shared, {"problem": "What is 2+2?", "answer": "4"}, {"problem": "What is 2+2?", "answer": "4"}]
    for name, rows in (("train", train), ("aime24", [shared])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subprocess.run(
        [
            sys.executable,
            str(RECIPES / "prepare_data.py"),
            f"--train={tmp_path / 'train.jsonl'}",
            f"--benchmarks=aime24={tmp_path / 'aime24.jsonl'}",
            f"--output-dir={tmp_path / 'out'}",
        ],
        check=True,
        timeout=500,
    )
    [row] = parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert "2+2" in row["prompt"][0]["content"]
    assert (row["reward_model"]["ground_truth"], row["extra_info"]["split"]) == ("4", "train")
    [row] = parquet.read_table(tmp_path / "out" / "aime24.parquet").to_pylist()
    assert (row["data_source"], row["extra_info"]["index"]) == ("aime24", content_id(row["prompt"]))


@pytest.mark.parametrize(
    "module", ["options", "outcomes", "prompts", "run_log", "filtering", "rewards", "data"]
)
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(
        importlib.import_module(f"coba_rl.hosts.verl.{module}"), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted > 0
    assert result.failed == 0


def test_the_recipe_sets_only_what_verl_knows() -> None:
    printed = subprocess.run(
        ["bash", str(RECIPES / "run_qwen2.5-7b-dapo.sh"), "--cfg", "job"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    ).stdout
    for line in (
        "trainer_mode: coba_sync",
        "max_budget: 128",
        "clip_ratio_high: 0.28",
        "train_batch_size: 256",
    ):
        assert line in printed
