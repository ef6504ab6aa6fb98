"""Bring DAPO-Math-17K and the five benchmarks into verl's layout, each prompt once, with ids that never change.

    python recipes/verl/prepare_data.py --output-dir ~/data/coba-rl
    python recipes/verl/prepare_data.py --train my-problems.parquet --benchmarks aime24=aime24.jsonl,math500

Writes `train.parquet` and one Parquet file a benchmark. `extra_info.index` is a hash of the prompt, so histories
survive re-ordering, filtering and a grown file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coba_rl.errors import CobaError
from coba_rl.hosts.verl.data import to_row, write_parquet
from coba_rl.tasks.base import Problem
from coba_rl.tasks.math import BENCHMARKS, MathTask, load_benchmark
from coba_rl.tasks.math_verifier import can_judge


def main() -> int:
    """Run the command; 2 for the user's mistakes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", default=MathTask.data, help="file or data set on the Hugging Face hub")
    parser.add_argument(
        "--benchmarks", default=",".join(BENCHMARKS), help="names, each as NAME or NAME=FILE for a local copy"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("~/data/coba-rl"))
    arguments = parser.parse_args()
    folder = arguments.output_dir.expanduser()
    try:
        heldout: set[str] = set()
        for entry in filter(None, arguments.benchmarks.split(",")):
            name, _, file = entry.partition("=")
            problems = load_benchmark(name, file or None)
            heldout |= {problem.prompt_id for problem in problems}
            _write(problems, folder / f"{name}.parquet", "test", name)
        task = MathTask(data=arguments.train)
        problems = [problem for problem in task.train_problems() if problem.prompt_id not in heldout]
        _write(problems, folder / "train.parquet", "train", None)
    except (CobaError, OSError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 2
    return 0


def _write(problems: list[Problem], path: Path, split: str, source: str | None) -> None:
    """Leave out what no verifier can judge: it would only spend rollouts."""
    judged = [problem for problem in problems if can_judge(problem.answer)]
    count = write_parquet((to_row(problem, split, source) for problem in judged), path)
    print(
        f"{path}: {count:,} problems, {len(problems) - count:,} left out because their answer cannot be parsed"
    )


if __name__ == "__main__":
    sys.exit(main())
