"""Runs a study's runs in parallel processes; each finished run is a file, so a study can stop and go on."""

from __future__ import annotations

import json
import multiprocessing
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from coba_rl.errors import CobaError, StateError
from coba_rl.files import write_atomic
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.provenance import made_by
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import Study, StudyRun

RECORD_VERSION = 2
_MEASURED = ("before", "after", "steps", "seconds")
_POLL_SECONDS = 0.2

OnProgress = Callable[[str, int], None]
"""Called with the key of a run and its finished steps."""


def run_study(
    study: Study, store: Path, workers: int = 1, on_progress: OnProgress = lambda *_: None
) -> StudyResults:
    """Run what is missing, and return the results of all runs, in the study's order.

    The processes import the script that called: keep the call below `if __name__ == "__main__":`.

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
        _run_missing(missing, store, workers, on_progress)
    return StudyResults(study, [read_record(run, store) for run in study.runs()], made_by())


def _run_missing(missing: dict[str, StudyRun], store: Path, workers: int, on_progress: OnProgress) -> None:
    context = multiprocessing.get_context("spawn")
    queue, stop = context.SimpleQueue(), context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(queue, stop))

    def submit(after: str | None) -> dict[Future[None], str]:
        """Runs that can begin once the run of this key is there; with None, those that wait for no other."""
        chosen = [run for run in missing.values() if _waits_for(run, missing) == after]
        return {pool.submit(_work, run, store): run.key for run in chosen}

    try:
        waiting = submit(None)
        while waiting:
            done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            while not queue.empty():
                on_progress(*queue.get())
            for future in done:
                future.result()
                waiting |= submit(after=waiting.pop(future))
    except BrokenProcessPool:
        raise CobaError(
            "A process of the study died, perhaps for want of memory. Finished runs are kept: the same command goes "
            "on, with fewer --workers if memory was short."
        ) from None
    finally:
        stop.set()  # runs under way end at their next step
        pool.shutdown(wait=True, cancel_futures=True)


def _waits_for(run: StudyRun, missing: dict[str, StudyRun]) -> str | None:
    """Key of the missing run that must be finished first."""
    return run.tokens_of.key if run.tokens_of and run.tokens_of.key in missing else None


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

    if replace(run).key != run.key:  # `replace` makes the key anew, from the files as this process reads them
        raise CobaError(
            "The source code was changed while the study ran. The same command runs what is missing anew."
        )
    tokens = read_record(run.tokens_of, store).tokens if run.tokens_of else None

    def report(step: int, _: Any) -> None:
        if _stop.is_set():
            raise CobaError("the study was stopped")
        # How many steps the run takes is known only where no tokens end it.
        _queue.put((run.key, min(step, run.config.steps - 1)))

    result = LabRun(run.config, on_step=report, tokens=tokens).run()
    measured = {name: getattr(result, name) for name in ("curve", *_MEASURED)}
    record = {"version": RECORD_VERSION, "config": run.config.model_dump(), **measured}
    write_atomic(store / f"{run.key}.json", json.dumps(record, allow_nan=False))
    _queue.put((run.key, run.config.steps))


def read_record(run: StudyRun, store: Path) -> LabResult:
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
        return LabResult(run.config, curve, *(values[name] for name in _MEASURED))
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is damaged ({type(error).__name__}: {error}). Delete it to run it again."
        ) from error
