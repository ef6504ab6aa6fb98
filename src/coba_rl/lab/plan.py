"""Which runs a study is made of, as far as those that are finished decide it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from coba_rl.lab.learning_curve import accuracy_at, mean_accuracy, shared_tokens
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import Cell, Study, StudyRun

MEASURES = {
    "final": lambda record, _: record.final,
    "at equal tokens": accuracy_at,
    "area over tokens": mean_accuracy,
}
"""Measures of a run by the tokens at which runs are compared: held-out accuracy at its end, at those, mean up to those."""

Find = Callable[[StudyRun], LabResult | None]
"""What a run measured; None while it is not finished."""


@dataclass(frozen=True)
class Tuning:
    """The learning rates tried for one arm in one setting."""

    runs: list[StudyRun]
    """Rate by rate, the lowest first, as far as it is known which rates to try."""
    records: dict[float, list[LabResult]]
    """Rate → what its runs measured, a seed each; empty while some are missing."""
    scores: dict[float, float]
    """Rate → mean of the measure that chooses; empty as `records`."""

    @property
    def best(self) -> float | None:
        """The chosen learning rate, of equal ones the lowest; None while runs are missing."""
        return max(self.scores, key=self.scores.__getitem__) if self.scores else None

    @property
    def is_on_edge(self) -> bool:
        """Whether a rate beyond those tried might have been better still."""
        return bool(self.scores) and self.best in (min(self.scores), max(self.scores))


class StudyPlan:
    """The runs of a study: of a tuned one first those of the grid, then those that their results decide.

    Args:
        study: The study.
        find: See `Find`; not asked again for a run that it has found.
    """

    def __init__(self, study: Study, find: Find) -> None:
        self.study, self._find = study, find
        self._runs: dict[tuple[str, str, int, float | None], StudyRun] = {}
        self._found: dict[str, LabResult] = {}

    def record(self, run: StudyRun) -> LabResult | None:
        """What a run measured; None while it is not finished."""
        if run.key not in self._found and (record := self._find(run)) is not None:
            self._found[run.key] = record
        return self._found.get(run.key)

    def tuning(self, setting: str, arm: str) -> Tuning | None:
        """What chooses the learning rate of an arm in a setting; None in a study without `tune`."""
        tune = self.study.tune
        if tune is None:
            return None
        rates = list(tune.learning_rate)
        while True:
            tuning = self._tried(setting, arm, sorted(rates))
            wider = None if tuning.best is None else tune.beyond(tuning.best, rates)
            if wider is None:
                return tuning
            rates.append(wider)

    def tests(self, setting: str, arm: str) -> list[StudyRun]:
        """The runs that an arm is compared by, a seed each; none while its learning rate is not chosen."""
        tuning = self.tuning(setting, arm)
        rate = tuning.best if tuning else None
        if tuning and rate is None:
            return []
        return [self._run(setting, arm, seed, rate) for seed in self.study.seeds]

    def runs(self, cells: Collection[Cell] | None = None) -> list[StudyRun]:
        """All runs known so far, in the order to make them: setting by setting, the tuning runs of a setting first.

        Args:
            cells: Those wanted; all of the study without it. A run that tells another its tokens comes with it.
        """
        found: list[StudyRun] = []
        for setting in self.study.settings:
            arms = [arm for arm in self.study.arms if cells is None or (setting, arm) in cells]
            tunings = [self.tuning(setting, arm) for arm in arms]
            found += [run for tuning in tunings if tuning for run in tuning.runs]
            by_seed = zip(*(tests for arm in arms if (tests := self.tests(setting, arm))), strict=True)
            for run in (run for runs in by_seed for run in runs):
                found += [run.tokens_of, run] if run.tokens_of else [run]
        return list({run.key: run for run in found}.values())

    def num_undecided(self, cells: Collection[Cell] | None = None) -> int:
        """Runs to be made beside those of `runs`, where learning rates are not chosen yet."""
        wanted = self.study.cells if cells is None else cells
        return len(self.study.seeds) * sum(not self.tests(*cell) for cell in wanted)

    def _tried(self, setting: str, arm: str, rates: list[float]) -> Tuning:
        assert self.study.tune is not None
        runs = {
            rate: [self._run(setting, arm, seed, rate) for seed in self.study.tune.seeds] for rate in rates
        }
        flat = [run for row in runs.values() for run in row]
        found = {rate: [r for run in row if (r := self.record(run))] for rate, row in runs.items()}
        finished = [record for row in found.values() for record in row]
        if len(finished) < len(flat):
            return Tuning(flat, {}, {})
        measure, tokens = MEASURES[self.study.tune.by], shared_tokens(finished)
        scores = {rate: float(np.mean([measure(r, tokens) for r in row])) for rate, row in found.items()}
        return Tuning(flat, found, scores)

    def _run(self, setting: str, arm: str, seed: int, rate: float | None) -> StudyRun:
        key = (setting, arm, seed, rate)
        if key not in self._runs:
            self._runs[key] = self.study.run(*key)
        return self._runs[key]
