"""Runs a study's runs in parallel processes; each finished run is a file, so a study can stop and go on."""

from __future__ import annotations

import json
import multiprocessing
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coba_rl.errors import CobaError, StateError
from coba_rl.files import write_atomic
from coba_rl.lab.study import Study, StudyRun

RECORD_VERSION = 1
_POLL_SECONDS = 0.2

OnProgress = Callable[[str, int], None]
"""Called with the key of a run and its finished steps."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A finished run, as its file holds it."""

    run: StudyRun
    curve: list[tuple[int, float]]
    """(step, held-out accuracy)."""
    final: float
    area: float
    transitions: list[list[int]]
    """(5, 5) training prompts by difficulty class before (rows) and after."""
    steps: list[dict[str, float]]
    """What was measured at each step."""
    seconds: float
    """Of processor time."""


def run_study(study: Study, store: Path, workers: int, on_progress: OnProgress) -> list[RunRecord]:
    """Run what is missing, and return all runs in the study's order.

    Args:
        study: What to run.
        store: Folder with `KEY.json` of each finished run; runs already there are not repeated. Studies that
            share a store share their runs.
        workers: Processes at a time, each on one core.
        on_progress: See `OnProgress`; runs found on disk report all their steps at once.

    Raises:
        StateError: A run's file is damaged.
    """
    store.mkdir(parents=True, exist_ok=True)
    missing = {}
    for run in study.runs():
        if (store / f"{run.key}.json").exists():
            on_progress(run.key, run.config.steps)
        else:
            missing[run.key] = run
    if missing:
        _run_missing(list(missing.values()), store, workers, on_progress)
    return [read_record(run, store) for run in study.runs()]


def _run_missing(missing: list[StudyRun], store: Path, workers: int, on_progress: OnProgress) -> None:
    context = multiprocessing.get_context("spawn")
    queue, stop = context.SimpleQueue(), context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(queue, stop))
    try:
        waiting: set[Future[None]] = {pool.submit(_work, run, store) for run in missing}
        while waiting:
            done, waiting = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            while not queue.empty():
                on_progress(*queue.get())
            for future in done:
                future.result()
    except BrokenProcessPool:
        raise CobaError(
            "A process of the study died, perhaps for want of memory. Finished runs are kept: the same command goes "
            "on, with fewer --workers if memory was short."
        ) from None
    finally:
        stop.set()  # runs under way end at their next step
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(queue: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    import torch
    from transformers.utils import logging

    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|torch)\.")
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    global _queue, _stop
    _queue, _stop = queue, stop


_queue: Any = None
_stop: Any = None


def _work(run: StudyRun, store: Path) -> None:
    from coba_rl.lab.run import LabRun

    def report(step: int, _: Any) -> None:
        if _stop.is_set():
            raise CobaError("the study was stopped")
        _queue.put((run.key, step))

    result = LabRun(run.config, on_step=report).run()
    record = {"version": RECORD_VERSION, "config": run.config.model_dump(), **result.as_dict()}
    write_atomic(store / f"{run.key}.json", json.dumps(record, allow_nan=False))


def read_record(run: StudyRun, store: Path) -> RunRecord:
    """The record of a finished run.

    Raises:
        StateError: The file is damaged or of another version.
    """
    path = store / f"{run.key}.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["version"] != RECORD_VERSION:
            raise StateError(
                f"{path} has version {values['version']!r}, this coba-rl reads version {RECORD_VERSION}. "
                "Delete it to run it again."
            )
        curve = [(int(step), float(accuracy)) for step, accuracy in values["curve"]]
        return RunRecord(
            run, curve, *(values[key] for key in ("final", "area", "transitions", "steps", "seconds"))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is damaged ({type(error).__name__}: {error}). Delete it to run it again."
        ) from error
