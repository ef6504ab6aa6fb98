"""Runs a study's runs in parallel processes; each finished run is a file, so a study can stop and go on."""

from __future__ import annotations

import json
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from coba_rl.errors import CobaError, StateError
from coba_rl.files import write_atomic
from coba_rl.lab.comparison import StudyResults
from coba_rl.lab.plan import StudyPlan
from coba_rl.lab.provenance import made_by
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import Cell, Study, StudyRun

RECORD_VERSION = 2
_MEASURED = ("before", "after", "steps", "seconds")
_POLL_SECONDS = 0.2

OnProgress = Callable[[StudyRun, int, int], None]
"""Called with a run, its finished steps, and the number of all runs as far as it is known."""


def run_study(
    study: Study,
    store: Path,
    workers: int = 1,
    on_progress: OnProgress = lambda *_: None,
    cells: Collection[Cell] | None = None,
) -> StudyResults:
    """Run what is missing, and return the results of all runs that there are.

    The processes import the script that called: keep the call below `if __name__ == "__main__":`.

    Args:
        study: What to run.
        store: Folder with `KEY.json` of each finished run; runs already there are not repeated. Studies that
            share a store share their runs.
        workers: Processes at a time, each on one core.
        on_progress: See `OnProgress`; runs found on disk report all their steps at once.
        cells: Settings and arms to run; all of the study without it, and none if empty. Of the others the results
            hold what an earlier call made.

    Raises:
        StateError: A run's file is damaged.
    """
    store.mkdir(parents=True, exist_ok=True)
    plan = StudyPlan(study, lambda run: read_record(run, store))
    _Runner(plan, store, on_progress, cells).run(workers)
    return StudyResults(plan, made_by())


class _Runner:
    """Makes the runs of a plan that are missing; each that is finished may tell more of them."""

    def __init__(
        self, plan: StudyPlan, store: Path, on_progress: OnProgress, cells: Collection[Cell] | None
    ) -> None:
        self._plan, self._store, self._on_progress, self._cells = plan, store, on_progress, cells
        self._under_way: dict[Future[None], StudyRun] = {}
        self._told: set[str] = set()
        self._num_runs = 0

    def run(self, workers: int) -> None:
        """Make all of them, some at a time."""
        context = multiprocessing.get_context("spawn")
        queue, stop = context.SimpleQueue(), context.Event()
        pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(queue, stop)
        )
        try:
            self._submit(pool, workers)
            while self._under_way:
                done, _ = wait(self._under_way, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                self._report(queue)
                for future in done:
                    future.result()
                    del self._under_way[future]
                if done:
                    self._submit(pool, workers)
        except BrokenProcessPool:
            raise CobaError(
                "A process of the study died, perhaps for want of memory. Finished runs are kept: the same command goes "
                "on, with fewer --workers if memory was short."
            ) from None
        finally:
            stop.set()  # runs under way end at their next step
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pool: ProcessPoolExecutor, workers: int) -> None:
        """Begin as many runs as there are free processes, the first of the plan that wait for no other."""
        runs = self._plan.runs(self._cells)
        self._num_runs = len(runs) + self._plan.num_undecided(self._cells)
        busy = {run.key for run in self._under_way.values()}
        for run in runs:
            if self._plan.record(run) is not None:
                if run.key not in self._told:
                    self._told.add(run.key)
                    self._on_progress(run, run.config.steps, self._num_runs)
            elif len(self._under_way) < workers and run.key not in busy and self._can_begin(run):
                self._under_way[pool.submit(_work, run, self._store)] = run

    def _can_begin(self, run: StudyRun) -> bool:
        return run.tokens_of is None or self._plan.record(run.tokens_of) is not None

    def _report(self, queue: Any) -> None:
        runs = {run.key: run for run in self._under_way.values()}
        while not queue.empty():
            key, step = queue.get()
            self._on_progress(runs[key], step, self._num_runs)


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
    paired = read_record(run.tokens_of, store) if run.tokens_of else None

    def report(step: int, _: Any) -> None:
        if _stop.is_set():
            raise CobaError("the study was stopped")
        # How many steps the run takes is known only where no tokens end it.
        _queue.put((run.key, min(step, run.config.steps - 1)))

    result = LabRun(run.config, on_step=report, tokens=paired.tokens if paired else None).run()
    measured = {name: getattr(result, name) for name in ("curve", *_MEASURED)}
    record = {"version": RECORD_VERSION, "config": run.config.model_dump(), **measured}
    write_atomic(store / f"{run.key}.json", json.dumps(record, allow_nan=False))


def read_record(run: StudyRun, store: Path) -> LabResult | None:
    """The record of a finished run; None if there is none.

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
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is damaged ({type(error).__name__}: {error}). Delete it to run it again."
        ) from error
