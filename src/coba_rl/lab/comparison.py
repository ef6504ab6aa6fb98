"""From the runs of a study to comparisons between arms, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coba_rl.evaluate import Estimate
from coba_rl.lab.result import LabResult
from coba_rl.lab.study import Study

MEASURES = ("final", "area")
"""Held-out accuracy at the end, and its mean over training (area under the learning curve)."""

MEAN_OF_SETTINGS = "mean of the settings"


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
    wins: int
    """Seeds on which the arm was ahead."""
    seeds: int
    tokens: float
    """Tokens that the arm generated for each of the baseline's, mean over seeds."""
    difference: Estimate
    """Arm − baseline, mean over seeds, with its 95 % interval over seeds (Student's t)."""

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON and CSV."""
        interval = self.difference.as_dict()
        return {**vars(self), "difference": interval.pop("value"), **interval}


class StudyResults:
    """The finished runs of a study, by setting and arm.

    Args:
        study: The study.
        records: What its runs measured, in the order of `study.runs()`.
        made_by: What made them, in a sentence.
    """

    def __init__(self, study: Study, records: Sequence[LabResult], made_by: str) -> None:
        self.study, self.made_by = study, made_by
        self.records = list(records)
        self._by_arm: dict[tuple[str, str], list[LabResult]] = {}
        for run, record in zip(study.runs(), records, strict=True):
            self._by_arm.setdefault((run.setting, run.arm), []).append(record)

    def of(self, setting: str, arm: str) -> list[LabResult]:
        """Runs of one arm in one setting, in the order of the study's seeds; of `MEAN_OF_SETTINGS`, setting by setting."""
        settings = self.study.settings if setting == MEAN_OF_SETTINGS else [setting]
        return [record for name in settings for record in self._by_arm[name, arm]]

    def values(self, setting: str, arm: str, measure: str) -> np.ndarray:
        """(seeds,) of a measure; of `MEAN_OF_SETTINGS`, the mean over the settings of each seed."""
        values = [getattr(record, measure) for record in self.of(setting, arm)]
        return np.reshape(values, (-1, len(self.study.seeds))).mean(axis=0)

    @property
    def groups(self) -> list[str]:
        """Settings, and their mean where there is more than one."""
        settings = list(self.study.settings)
        return settings if len(settings) == 1 else [*settings, MEAN_OF_SETTINGS]

    def estimate(self, setting: str, arm: str, measure: str) -> Estimate:
        """Mean over seeds with its 95 % interval."""
        return mean_over_seeds(self.values(setting, arm, measure))

    def comparison(self, setting: str, arm: str, baseline: str, measure: str) -> Comparison:
        """Arm − baseline, seed by seed."""
        a, b = self.values(setting, arm, measure), self.values(setting, baseline, measure)
        tokens = self.tokens(setting, arm, baseline)
        wins = int((a > b).sum())
        return Comparison(setting, arm, baseline, measure, wins, len(a), tokens, mean_over_seeds(a - b))

    def tokens(self, setting: str, arm: str, baseline: str) -> float:
        """Tokens that an arm generated for each of the baseline's, mean over pairs of runs."""
        pairs = zip(self.of(setting, arm), self.of(setting, baseline), strict=True)
        return float(np.mean([a.tokens / b.tokens for a, b in pairs]))

    def comparisons(self) -> list[Comparison]:
        """Every arm against every baseline, by setting and measure."""
        return [
            self.comparison(setting, arm, baseline, measure)
            for setting in self.groups
            for baseline in self.study.baselines
            for arm in self.study.arms
            if arm != baseline
            for measure in MEASURES
        ]

    def summary(self) -> dict[str, Any]:
        """Everything the tables show, fit for JSON."""
        return {
            "study": self.study.model_dump(),
            "made_by": self.made_by,
            "arms": [
                {
                    "setting": setting,
                    "arm": arm,
                    "tokens": self.tokens(setting, arm, self.study.baselines[0]),
                    **{measure: self.estimate(setting, arm, measure).as_dict() for measure in MEASURES},
                }
                for setting in self.groups
                for arm in self.study.arms
            ],
            "comparisons": [comparison.as_dict() for comparison in self.comparisons()],
            "processor_seconds": sum(record.seconds for record in self.records),
        }

    def tidy(self) -> list[dict[str, Any]]:
        """One row for each measured point: setting, arm, seed, step, rollouts and tokens generated, accuracy."""
        return [
            {
                "setting": run.setting,
                "arm": run.arm,
                "seed": run.config.seed,
                "step": step,
                "rollouts": int(record.rollouts_by_step[step]),
                "tokens": int(record.tokens_by_step[step]),
                "accuracy": accuracy,
            }
            for run, record in zip(self.study.runs(), self.records, strict=True)
            for step, accuracy in record.curve
        ]


def counted_seeds(study: Study) -> str:
    """How many seeds a study has, in words."""
    return f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"


def comparison_rows(results: StudyResults, setting: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of one setting: each arm, and its difference to each baseline.

    Accuracy and its differences are in percent, with 95 % intervals over seeds; generated tokens in percent of the
    first baseline's.
    """
    baselines = results.study.baselines
    columns = ["arm", f"tokens, % of {baselines[0]}", "final accuracy, %", "mean over training, %"]
    columns += [f"final − {baseline} (seeds ahead)" for baseline in baselines]
    rows = []
    for arm in results.study.arms:
        tokens = f"{100 * results.tokens(setting, arm, baselines[0]):.0f}"
        row = [arm, tokens, *(_percent(results.estimate(setting, arm, measure)) for measure in MEASURES)]
        for baseline in baselines:
            c = results.comparison(setting, arm, baseline, "final")
            row.append("–" if arm == baseline else f"{_percent(c.difference, '+')} ({c.wins}/{c.seeds})")
        rows.append(row)
    return columns, rows


def _percent(estimate: Estimate, sign: str = "") -> str:
    text = f"{100 * estimate.value:{sign}.1f}"
    if np.isnan(estimate.low):
        return text
    return f"{text} [{100 * estimate.low:{sign}.1f}, {100 * estimate.high:{sign}.1f}]"
