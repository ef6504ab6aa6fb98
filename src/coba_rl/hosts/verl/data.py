"""Problems in verl's data layout, with ids that survive re-ordering and filtering."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coba_rl.errors import DatasetError
from coba_rl.tasks.base import Problem


def to_row(problem: Problem, split: str, data_source: str | None = None) -> dict[str, Any]:
    """One row as verl reads it.

    Args:
        problem: The problem; plain text becomes a user's message.
        split: Kept in `extra_info`, e.g. `train`.
        data_source: Instead of the problem's own; verl's validation metrics are grouped by it.

    Example:
        >>> row = to_row(Problem("7f", "1+1=", "2", "sums"), "train")
        >>> row["prompt"], row["extra_info"]
        ([{'role': 'user', 'content': '1+1='}], {'index': '7f', 'split': 'train'})
    """
    prompt = problem.prompt
    return {
        "data_source": data_source or problem.data_source or "unknown",
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": problem.prompt_id, "split": split},
    }


def write_parquet(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write rows as Parquet; the number of rows.

    Raises:
        DatasetError: No rows.
        OSError: The file cannot be written.
    """
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(list(rows))
    if not table.num_rows:
        raise DatasetError(
            f"There are no problems to write to {str(path)!r}. Check the source and its filters."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return table.num_rows
