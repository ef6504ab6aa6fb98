"""From the runs of a study to comparisons between arms, paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coba_rl.evaluate import Estimate
from coba_rl.lab.learning_curve import has_collapsed, shared_tokens, tokens_to
from coba_rl.lab.plan import MEASURES, StudyPlan
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import StudyRun

MEAN_OF_SETTINGS = "mean of the settings"

_SPENT: dict[str, Callable[[LabResult], int]] = {
    "tokens": lambda record: record.tokens,
    "rollouts": lambda record: record.rollouts,
    "steps": lambda record: len(record.steps),
}


def mean_over_seeds(values_N: npt.ArrayLike) -> Estimate:
    """Mean with its 95 % interval by Student's t, for a few values that scatter about evenly around their mean.

    Args:
        values_N: (N,) one value a seed; a single one has no interval.

    Example:
        >>> round(mean_over_seeds([1.0, 2.0, 3.0]).high, 3)  # 2 + 4.303 · 1 / √3
        4.484
    """
    from scipy.special import stdtrit  # only studies need it

    values = np.asarray(values_N, dtype=np.float64)
    mean, num = float(values.mean()), len(values)
    if num < 2:
        return Estimate(mean, np.nan, np.nan)
    half = float(stdtrit(num - 1, 0.975) * values.std(ddof=1) / np.sqrt(num))
    return Estimate(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Comparison:
    """One arm against one baseline in one setting, on the same seeds."""

    setting: str
    arm: str
    baseline: str
    measure: str
    """One of `MEASURES`, or `tokens to A`: the logarithm of the tokens until held-out accuracy was first A."""
    wins: int
    """Seeds on which the arm was ahead: more accurate, or there with fewer tokens."""
    seeds: int
    reached: int
    """Runs of the arm that reached A; all, where the measure is an accuracy. Of the others the tokens at which runs are
    compared count, which is less than they would have needed."""
    baseline_reached: int
    """The same of the baseline's runs."""
    tokens: float
    """Tokens that the arm generated for each of the baseline's, mean over seeds."""
    difference: Estimate
    """Arm − baseline, mean over seeds, with its 95 % interval over seeds (Student's t)."""

    @property
    def ratio(self) -> Estimate:
        """Arm / baseline, where the measure is a logarithm: the geometric mean over seeds."""
        d = self.difference
        return Estimate(*(float(np.exp(value)) for value in (d.value, d.low, d.high)))

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON and CSV."""
        interval = self.difference.as_dict()
        return {**vars(self), "difference": interval.pop("value"), **interval}


class StudyResults:
    """The finished runs of a study, by setting and arm.

    An arm is there in a setting once it ran with all seeds.

    Args:
        plan: The study, with what its runs measured.
        made_by: What made them, in a sentence.
    """

    def __init__(self, plan: StudyPlan, made_by: str) -> None:
        self.study, self.plan, self.made_by = plan.study, plan, made_by
        self._runs = {cell: self._finished(plan.tests(*cell)) for cell in self.study.cells}
        self.tunings = {cell: tuning for cell in self.study.cells if (tuning := plan.tuning(*cell))}

    def _finished(self, runs: Sequence[StudyRun]) -> list[tuple[StudyRun, LabResult]]:
        found = [(run, record) for run in runs if (record := self.plan.record(run)) is not None]
        return found if len(found) == len(self.study.seeds) else []

    @property
    def records(self) -> list[LabResult]:
        """The runs by which arms are compared, setting by setting and arm by arm."""
        return [record for pairs in self._runs.values() for _, record in pairs]

    def arms(self, setting: str) -> list[str]:
        """The arms that are there; of `MEAN_OF_SETTINGS`, those that are there in all of them."""
        return [
            arm for arm in self.study.arms if all(self._runs[name, arm] for name in self._settings(setting))
        ]

    def of(self, setting: str, arm: str) -> list[LabResult]:
        """Runs of one arm in one setting, in the order of the study's seeds; of `MEAN_OF_SETTINGS`, setting by setting."""
        return [record for name in self._settings(setting) for _, record in self._runs[name, arm]]

    def _settings(self, setting: str) -> list[str]:
        return list(self.study.settings) if setting == MEAN_OF_SETTINGS else [setting]

    def tokens_compared(self, setting: str) -> int:
        """Tokens at which the runs of a setting are compared."""
        return shared_tokens([record for arm in self.arms(setting) for record in self.of(setting, arm)])

    def values(self, setting: str, arm: str, measure: str) -> np.ndarray:
        """(seeds,) of a measure; of `MEAN_OF_SETTINGS`, the mean over the settings of each seed."""
        values = []
        for name in self._settings(setting):
            tokens, records = self.tokens_compared(name), self.of(name, arm)
            values.append([MEASURES[measure](record, tokens) for record in records])
        return np.mean(values, axis=0)

    def tokens_needed(self, setting: str, arm: str, accuracy: float) -> tuple[np.ndarray, int]:
        """(seeds,) tokens until held-out accuracy was first this high, and how many runs got there.

        Of the others the tokens at which runs are compared count.
        """
        most = self.tokens_compared(setting)
        needed = np.array([tokens_to(record, accuracy) for record in self.of(setting, arm)])
        return np.minimum(needed, most), int((needed <= most).sum())

    @property
    def groups(self) -> list[str]:
        """Settings, and their mean where there is more than one."""
        settings = list(self.study.settings)
        return settings if len(settings) == 1 else [*settings, MEAN_OF_SETTINGS]

    def targets(self, setting: str) -> list[float]:
        """The study's accuracies that at least one of a setting's runs reached, and none began with."""
        records = [record for arm in self.arms(setting) for record in self.of(setting, arm)]
        return self._reached(records, any)

    def target(self, setting: str) -> float | None:
        """The highest accuracy that every run of the first baseline reached: of its tuning runs where there are any.

        So in a tuned study the test seeds did not choose it.
        """
        baseline = self.study.baselines[0]
        tuning = self.tunings.get((setting, baseline))
        if tuning and tuning.best is not None:
            return max(self._reached(tuning.records[tuning.best], all), default=None)
        return max(self._reached(self.of(setting, baseline), all), default=None)

    def _reached(self, records: Sequence[LabResult], by: Callable[[Iterable[bool]], bool]) -> list[float]:
        if not records:
            return []
        begun, most = max(record.curve[0][1] for record in records), shared_tokens(records)
        return [
            target
            for target in sorted(self.study.targets)
            if target > begun and by(tokens_to(record, target) <= most for record in records)
        ]

    def collapses(self, setting: str, arm: str) -> int:
        """Runs that ended far below their own best, or below where they began."""
        return sum(map(has_collapsed, self.of(setting, arm)))

    def estimate(self, setting: str, arm: str, measure: str) -> Estimate:
        """Mean over seeds with its 95 % interval."""
        return mean_over_seeds(self.values(setting, arm, measure))

    def comparison(self, setting: str, arm: str, baseline: str, measure: str) -> Comparison:
        """Arm − baseline, seed by seed, of one of `MEASURES`."""
        a, b = self.values(setting, arm, measure), self.values(setting, baseline, measure)
        return self._compared(setting, arm, baseline, measure, a - b, a > b, (len(a), len(b)))

    def tokens_comparison(self, setting: str, arm: str, baseline: str, accuracy: float) -> Comparison:
        """Logarithm of the tokens until held-out accuracy was first this high, arm − baseline, seed by seed."""
        (a, reached), (b, baseline_reached) = (
            self.tokens_needed(setting, name, accuracy) for name in (arm, baseline)
        )
        measure, both = f"tokens to {accuracy:g}", (reached, baseline_reached)
        return self._compared(setting, arm, baseline, measure, np.log(a / b), a < b, both)

    def _compared(
        self,
        setting: str,
        arm: str,
        baseline: str,
        measure: str,
        difference_N: np.ndarray,
        ahead_N: np.ndarray,
        reached: tuple[int, int],
    ) -> Comparison:
        tokens = self.spent(setting, arm, baseline, "tokens")
        counts = (int(ahead_N.sum()), len(ahead_N), *reached)
        return Comparison(setting, arm, baseline, measure, *counts, tokens, mean_over_seeds(difference_N))

    def spent(self, setting: str, arm: str, baseline: str, unit: str) -> float:
        """What an arm spent in all for each of the baseline's `tokens`, `rollouts` or `steps`, mean over pairs of runs."""
        spent = _SPENT[unit]
        pairs = zip(self.of(setting, arm), self.of(setting, baseline), strict=True)
        return float(np.mean([spent(a) / spent(b) for a, b in pairs]))

    def comparisons(self) -> list[Comparison]:
        """Every arm against every baseline, by setting and measure."""
        found = []
        for setting in self.groups:
            arms, mean = self.arms(setting), setting == MEAN_OF_SETTINGS
            for baseline in (name for name in self.study.baselines if name in arms):
                for arm in (name for name in arms if name != baseline):
                    found += [self.comparison(setting, arm, baseline, measure) for measure in MEASURES]
                    targets = [] if mean else self.targets(setting)
                    found += [self.tokens_comparison(setting, arm, baseline, t) for t in targets]
        return found

    def summary(self) -> dict[str, Any]:
        """Everything the tables show, fit for JSON."""
        return {
            "study": self.study.model_dump(),
            "made_by": self.made_by,
            "arms": [
                self._arm_summary(setting, arm) for setting in self.groups for arm in self.arms(setting)
            ],
            "comparisons": [comparison.as_dict() for comparison in self.comparisons()],
            "tuning": [
                {"setting": setting, "arm": arm, "scores": tuning.scores, "best": tuning.best}
                for (setting, arm), tuning in self.tunings.items()
            ],
            "processor_seconds": sum(record.seconds for record in self.records),
        }

    def _arm_summary(self, setting: str, arm: str) -> dict[str, Any]:
        return {
            "setting": setting,
            "arm": arm,
            "collapses": self.collapses(setting, arm),
            **{measure: self.estimate(setting, arm, measure).as_dict() for measure in MEASURES},
        }

    def tidy(self) -> list[dict[str, Any]]:
        """One row for each measured point: run, step, rollouts and tokens generated until then, accuracy."""
        pairs = [pair for cell in self._runs.values() for pair in cell]
        for tuning in self.tunings.values():
            pairs += [(run, record) for run in tuning.runs if (record := self.plan.record(run)) is not None]
        return [
            {
                "setting": run.setting,
                "arm": run.arm,
                "phase": run.phase,
                "learning_rate": run.config.learning_rate,
                "seed": run.config.seed,
                "step": step,
                "rollouts": int(record.rollouts_by_step[step]),
                "tokens": int(record.tokens_by_step[step]),
                "accuracy": accuracy,
            }
            for run, record in pairs
            for step, accuracy in record.curve
        ]
