"""Feed one file reader with damaged files, led by coverage; anything but the project's own errors is a crash.

Usage: fuzz_reader.py READER CORPUS_FOLDER LIBFUZZER_OPTIONS…

The corpus starts as valid files of the reader; each must be read without an error.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["coba_rl", "tomllib", "json", "csv"], enable_loader_override=False):
    import csv  # noqa: F401
    import tomllib  # noqa: F401

    from coba_rl.allocation import BudgetAllocator
    from coba_rl.errors import CobaError
    from coba_rl.hosts.groups import Outcome
    from coba_rl.hosts.session import BudgetSession
    from coba_rl.rates import allocate_rates, read_rates, write_budgets
    from coba_rl.records import (
        AllocationRecord,
        Estimate,
        EvaluationRecord,
        HeldoutSummary,
        PassRateBin,
        RunSummary,
    )
    from coba_rl.report.records import read_run
    from coba_rl.runs.config import load_config
    from coba_rl.runs.folder import RunFolder
    from coba_rl.tasks.math import MathTask

FOLDER = Path(tempfile.mkdtemp())
SAVED: dict[Path, bytes] = {}
RECORDS: dict[Path, bytes] = {}
SHIPPED = Path(__file__).parents[2] / "src" / "coba_rl" / "configs"

TOKENS = (
    "nan",
    "inf",
    "NaN",
    "Infinity",
    "null",
    "true",
    "None",
    "-1",
    "0",
    "1e999",
    "9" * 40,
    "[]",
    "{}",
    '""',
    "[",
)
"""Values that readers often forget."""

NESTED = (b"[" * 3000, b'{"a":' * 600, b"a = " + b"[" * 3000)
"""Deeper than the interpreter's stack."""


def new_session() -> BudgetSession:
    allocator = BudgetAllocator("coba", bounds=(2, 16))
    return BudgetSession(allocator, settings={"num_generations": 8}, data_ids=lambda: ["a", "c"])


def save_state() -> list[Path]:
    """The files of a session that has seen three prompts and waits for the rollouts of a fourth."""
    session = new_session()
    for step in (1, 2):
        session.plan(["a", "b", 7], 24)
        session.record_all(np.arange(24) % 2.0)
        session.finish(step)
    session.plan(["d"], 8)
    session.record([Outcome(6, 0, 1.0)])
    session.save(FOLDER)
    return sorted(FOLDER.glob("coba_*"))


def config(raw: bytes) -> None:
    file = FOLDER / "config.toml"
    file.write_bytes(raw)
    load_config(file, {})


def state(raw: bytes) -> None:
    """The last byte says which file of the state is replaced."""
    if not raw:
        return
    if not SAVED:
        SAVED.update({file: file.read_bytes() for file in save_state()})
    for file, whole in SAVED.items():
        file.write_bytes(whole)
    [*SAVED][raw[-1] % len(SAVED)].write_bytes(raw[:-1])
    new_session().load(FOLDER)


def data(raw: bytes) -> None:
    """The last byte says which format the file claims to have."""
    if not raw:
        return
    file = FOLDER / f"data.{('jsonl', 'json', 'parquet')[raw[-1] % 3]}"
    file.write_bytes(raw[:-1])
    MathTask(str(file)).train_problems()


def allocations(raw: bytes) -> None:
    """The last byte says which format the file claims to have."""
    if not raw:
        return
    file = FOLDER / f"rates.{('csv', 'jsonl', 'parquet')[raw[-1] % 3]}"
    file.write_bytes(raw[:-1])
    rates = read_rates(file)
    allocation = allocate_rates(BudgetAllocator("coba"), rates, 16 * len(rates.prompt_ids))
    for kind in ("csv", "jsonl", "parquet"):
        write_budgets(FOLDER / f"budgets.{kind}", allocation)


def run_files() -> dict[Path, bytes]:
    """The files of a run of one step, each as it was written, but for the configuration."""
    folder = RunFolder(FOLDER / "run")
    checkpoint = folder.checkpoints / "checkpoint-1"
    checkpoint.mkdir(parents=True, exist_ok=True)
    folder.log_metrics({"step": 1, "coba/alpha": 2.0})
    folder.log_allocations([AllocationRecord(1, "a", 0.5, None, budget=2, successes=1.0, attempts=2)])
    folder.log_heldout(EvaluationRecord(0, "transformers", {"a": 0.5, "b": None}))
    folder.mark_complete(checkpoint, 1)
    sure = Estimate(0.5, 0.25, 0.75)
    folder.write_summary(
        RunSummary(
            strategy="coba", steps=1, rollouts=2, tokens=None, budget_min=2, budget_max=2, dead_groups=0.0, seconds=1.0,
            heldout=HeldoutSummary(1, 2, sure, sure, None), where_rollouts_went=(PassRateBin("1", 1, 1, 2, None),),
        )
    )  # fmt: skip
    files = [folder.metrics_file, folder.allocations_file, folder.summary_file, folder.heldout_file]
    return {file: file.read_bytes() for file in (*files, checkpoint / "COMPLETE")}


def records(raw: bytes) -> None:
    """The files of a run folder that a report or a resumed run reads; the last byte says which one is replaced."""
    if not raw:
        return
    if not RECORDS:
        RECORDS.update(run_files())
    for file, whole in RECORDS.items():
        file.write_bytes(whole)
    [*RECORDS][raw[-1] % len(RECORDS)].write_bytes(raw[:-1])
    folder = RunFolder(FOLDER / "run")
    read_run(folder.path)
    folder.check_last_checkpoint()
    folder.reopen("")


def parquet(rows: list[dict[str, object]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def settings() -> bytes:
    """A configuration with every section and the options of a strategy."""
    lines = ["[allocation]", 'strategy = "coba"', "kappa = 9.0", "tau_per_rollout = 0.1", "min_budget = 2"]
    lines += ["success_threshold = 0.5", "window = 3", 'estimator = { name = "drift", decay = 0.9 }']
    lines += ["[training]", "steps = 3", "learning_rate = 1e-4", "micro_batch_size = 8", "[trl]", "top_k = 3"]
    return "\n".join(
        [*lines, "[task]", 'name = "math"', 'dataset = "a/b"', "[policy]", 'model = "m"']
    ).encode()


def seeds(reader: str) -> list[bytes]:
    """Valid files of every kind that the reader knows."""
    if reader == "config":
        return [file.read_bytes() for file in SHIPPED.glob("*.toml")] + [settings()]
    if reader == "state":
        return [file.read_bytes() + bytes([i]) for i, file in enumerate(save_state())]
    if reader == "data":
        rows: list[dict[str, object]] = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": 4}]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        as_text = [{**row, "answer": str(row["answer"])} for row in rows]
        return [lines + b"\0", json.dumps(rows).encode() + b"\1", parquet(as_text) + b"\2"]
    if reader == "allocations":
        counts: list[dict[str, object]] = [{"prompt_id": "a", "successes": 1, "attempts": 4}]
        return [
            b"prompt_id,pass_rate\na,0.5\nb,\n\0",
            b'{"prompt_id": "a", "pass_rate": 0.5}\n{"prompt_id": 7, "pass_rate": null}\n\1',
            parquet(counts) + b"\2",
        ]
    return [content + bytes([i]) for i, content in enumerate(run_files().values())]


def main(reader: str, corpus: Path, options: list[str]) -> None:
    read: Callable[[bytes], None] = globals()[reader]
    os.fsync = lambda _: None  # no power is lost here
    logging.disable()
    for i, seed in enumerate(seeds(reader)):
        read(seed)
        (corpus / f"seed-{i}").write_bytes(seed)

    for i, nested in enumerate(NESTED if reader != "state" else ()):
        for kind in range(5):
            (corpus / f"nested-{i}-{kind}").write_bytes(nested + bytes([kind]) * (reader != "config"))

    def feed(raw: bytes) -> None:
        with contextlib.suppress(CobaError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(raw)

    tokens = FOLDER / "tokens"
    tokens.write_text("".join(f"{json.dumps(token)}\n" for token in TOKENS))
    atheris.Setup([sys.argv[0], f"-dict={tokens}", *options, str(corpus)], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
