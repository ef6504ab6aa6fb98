"""From the runs of a study to comparisons between arms, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coba_rl.evaluate import Estimate, mean_estimate, paired_difference
from coba_rl.lab.runner import RunRecord
from coba_rl.lab.study import Study

MEASURES = ("final", "area")
"""Held-out accuracy at the end, and its mean over training (area under the learning curve)."""

MEAN_OF_SETTINGS = "mean of the settings"


@dataclass(frozen=True)
class Comparison:
    """One arm against one baseline in one setting, on the same seeds."""

    setting: str
    arm: str
    baseline: str
    measure: str
    difference: Estimate
    """Arm − baseline, mean over seeds, with its 95 % bootstrap interval over seeds."""
    wins: int
    """Seeds on which the arm was ahead."""
    seeds: int

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON and CSV."""
        interval = self.difference.as_dict()
        return {
            "setting": self.setting,
            "arm": self.arm,
            "baseline": self.baseline,
            "measure": self.measure,
            "difference": interval["value"],
            "low": interval["low"],
            "high": interval["high"],
            "wins": self.wins,
            "seeds": self.seeds,
        }


class StudyResults:
    """The finished runs of a study, by setting and arm.

    Args:
        study: The study.
        records: Its runs.
    """

    def __init__(self, study: Study, records: Sequence[RunRecord]) -> None:
        self.study = study
        self.records = list(records)
        self._by_arm: dict[tuple[str, str], list[RunRecord]] = {}
        for record in records:
            self._by_arm.setdefault((record.run.setting, record.run.arm), []).append(record)

    def of(self, setting: str, arm: str) -> list[RunRecord]:
        """Runs of one arm in one setting, in the order of the study's seeds."""
        return self._by_arm[setting, arm]

    def values(self, setting: str, arm: str, measure: str) -> np.ndarray:
        """(seeds,) of a measure; of `MEAN_OF_SETTINGS`, the mean over the settings of each seed."""
        settings = list(self.study.settings) if setting == MEAN_OF_SETTINGS else [setting]
        table = [[getattr(record, measure) for record in self.of(name, arm)] for name in settings]
        return np.mean(table, axis=0)

    @property
    def groups(self) -> list[str]:
        """Settings, and their mean where there is more than one."""
        settings = list(self.study.settings)
        return settings if len(settings) == 1 else [*settings, MEAN_OF_SETTINGS]

    def estimate(self, setting: str, arm: str, measure: str) -> Estimate:
        """Mean over seeds with its 95 % bootstrap interval."""
        return mean_estimate(self.values(setting, arm, measure))

    def comparison(self, setting: str, arm: str, baseline: str, measure: str) -> Comparison:
        """Arm − baseline, seed by seed."""
        a, b = self.values(setting, arm, measure), self.values(setting, baseline, measure)
        return Comparison(
            setting, arm, baseline, measure, paired_difference(a, b), int((a > b).sum()), len(a)
        )

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

    def tidy(self) -> list[dict[str, Any]]:
        """One row for each measured point: setting, arm, seed, step, rollouts spent, held-out accuracy."""
        return [
            {
                "setting": record.run.setting,
                "arm": record.run.arm,
                "seed": record.run.config.seed,
                "step": step,
                "rollouts": step * record.run.config.rollouts_per_step,
                "accuracy": accuracy,
            }
            for record in self.records
            for step, accuracy in record.curve
        ]


def comparison_rows(results: StudyResults, setting: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of one setting: each arm, and its difference to each baseline.

    Accuracy and its differences are in percent, with 95 % intervals over seeds.
    """
    baselines = results.study.baselines
    columns = ["arm", "final accuracy, %", "mean over training, %"]
    columns += [f"final − {baseline} (seeds ahead)" for baseline in baselines]
    rows = []
    for arm in results.study.arms:
        row = [arm, *(_percent(results.estimate(setting, arm, measure)) for measure in MEASURES)]
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
