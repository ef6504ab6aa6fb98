"""The tables of a study: for its page, for Markdown and for the terminal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coba_rl.evaluate import Estimate
from coba_rl.lab.comparison import MEAN_OF_SETTINGS, StudyResults
from coba_rl.lab.learning_curve import has_collapsed
from coba_rl.lab.plan import MEASURES, Tuning
from coba_rl.lab.study import Study
from coba_rl.report.page import Table

MISSING = "not run"

_DARK_DIFFERENCE, _DARK_SAVING = 0.05, 0.3  # of accuracy, and of tokens: as dark as cells get


def counted_seeds(study: Study) -> str:
    """How many seeds a study has, in words."""
    return f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"


def summary_tables(results: StudyResults) -> list[Table]:
    """Settings × arms: accuracy at equal tokens and tokens to a target, against each baseline; rates and collapses."""
    tables = []
    for baseline in results.study.baselines:
        tables += [_difference_table(results, baseline), _target_table(results, baseline)]
    if results.tunings or any(
        results.collapses(s, a) for s in results.study.settings for a in results.arms(s)
    ):
        tables.append(_stability_table(results))
    return tables


def _difference_table(results: StudyResults, baseline: str) -> Table:
    """Accuracy at equal tokens, arm − baseline, in points; shaded where its interval leaves out 0."""

    def facts(setting: str) -> str:
        accuracy = f"{100 * results.estimate(setting, baseline, 'at equal tokens').value:.1f} %"
        if setting == MEAN_OF_SETTINGS:
            return accuracy
        return f"{accuracy} at {results.tokens_compared(setting) / 1000:,.0f}k"

    def cell(setting: str, arm: str) -> tuple[str, float]:
        d = results.comparison(setting, arm, baseline, "at equal tokens").difference
        shade = d.value / _DARK_DIFFERENCE if d.low > 0 or d.high < 0 else 0.0
        return _points(d), shade

    caption = f"Accuracy at equal tokens − {baseline}, points"
    return _matrix(results, caption, results.groups, baseline, facts, cell)


def _target_table(results: StudyResults, baseline: str) -> Table:
    """Tokens until the setting's target was first reached, in % of the baseline's; shaded where its interval leaves out 100."""

    def facts(setting: str) -> str:
        target = results.target(setting)
        if target is None:
            return "none"
        tokens_N, reached = results.tokens_needed(setting, baseline, target)
        mean = f"{tokens_N.mean() / 1000:,.0f}k"
        return f"{100 * target:.0f} % after {mean}{_of_all(reached, len(tokens_N))}"

    def cell(setting: str, arm: str) -> tuple[str, float]:
        target = results.target(setting)
        if target is None:
            return "–", 0.0
        compared = results.tokens_comparison(setting, arm, baseline, target)
        ratio, d = compared.ratio, compared.difference
        shade = (1.0 - ratio.value) / _DARK_SAVING if d.low > 0 or d.high < 0 else 0.0
        return percent(ratio, digits=0) + _of_all(compared.reached, compared.seeds), shade

    caption = f"Tokens until held-out accuracy is first at the target, % of {baseline}'s"
    return _matrix(results, caption, list(results.study.settings), baseline, facts, cell)


def _matrix(
    results: StudyResults,
    caption: str,
    groups: list[str],
    baseline: str,
    facts: Callable[[str], str],
    cell: Callable[[str, str], tuple[str, float]],
) -> Table:
    """A row a setting: what the baseline did in it, then a cell with its shade for each other arm."""
    arms = [arm for arm in results.study.arms if arm != baseline]
    rows, shades = [], []
    for setting in groups:
        there = results.arms(setting) if baseline in results.arms(setting) else []
        cells = [cell(setting, arm) if arm in there else (MISSING, 0.0) for arm in arms]
        rows.append([setting, facts(setting) if there else MISSING, *(text for text, _ in cells)])
        shades.append([0.0, *(float(np.clip(shade, -1.0, 1.0)) for _, shade in cells)])
    return Table(caption, ["setting", baseline, *arms], rows, shades=shades)


def _stability_table(results: StudyResults) -> Table:
    """The learning rate of each arm where it was tuned, and how many of its runs collapsed."""

    def cell(setting: str, arm: str) -> str:
        tuning = results.tunings.get((setting, arm))
        parts = [rate_of(tuning)] if tuning else []
        if arm in results.arms(setting):
            collapsed = results.collapses(setting, arm)
            parts += [_collapsed(collapsed, len(results.study.seeds))] if collapsed else []
        return ", ".join(parts) or "–"

    arms = list(results.study.arms)
    rows = [[setting, *(cell(setting, arm) for arm in arms)] for setting in results.study.settings]
    caption = (
        "Learning rate chosen, and runs that collapsed (↓)" if results.tunings else "Runs that collapsed (↓)"
    )
    return Table(caption, ["setting", *arms], rows)


def comparison_rows(results: StudyResults, setting: str) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of one setting: each arm, and its difference to each baseline.

    Accuracy and its differences are in percent, with 95 % intervals over seeds; what was spent is in percent of the
    first baseline's.
    """
    study = results.study
    first, *_ = study.baselines
    columns = ["arm", *(f"{measure}, %" for measure in MEASURES)]
    columns += [f"at equal tokens − {baseline} (seeds ahead)" for baseline in study.baselines]
    columns.append(f"tokens / rollouts / steps, % of {first}")
    there = results.arms(setting)
    rows = []
    for arm in study.arms:
        if arm not in there:
            rows.append([arm, *[MISSING] * (len(columns) - 1)])
            continue
        row = [arm, *(percent(results.estimate(setting, arm, measure)) for measure in MEASURES)]
        row += [_against(results, setting, arm, baseline) for baseline in study.baselines]
        units = ("tokens", "rollouts", "steps") if first in there else ()
        spent = " / ".join(f"{100 * results.spent(setting, arm, first, unit):.0f}" for unit in units)
        rows.append([*row, spent or MISSING])
    return columns, rows


def _against(results: StudyResults, setting: str, arm: str, baseline: str) -> str:
    if arm == baseline:
        return "–"
    if baseline not in results.arms(setting):
        return MISSING
    c = results.comparison(setting, arm, baseline, "at equal tokens")
    return f"{percent(c.difference, '+')} ({c.wins}/{c.seeds})"


def target_table(results: StudyResults, setting: str) -> Table:
    """Thousands of tokens that each arm needed to each accuracy: median over seeds, and how many runs got there."""
    targets = results.targets(setting)
    rows = []
    for arm in results.arms(setting):
        found = [results.tokens_needed(setting, arm, target) for target in targets]
        rows.append([arm, *(_median(tokens_N, reached) for tokens_N, reached in found)])
    return Table(f"{setting}: thousands of tokens to", ["arm", *(f"{100 * t:.0f} %" for t in targets)], rows)


def _median(tokens_N: np.ndarray, reached: int) -> str:
    """A median is known while more than half of the runs got there."""
    known = reached > len(tokens_N) / 2
    return (f"{np.median(tokens_N) / 1000:,.0f}" if known else "–") + _of_all(reached, len(tokens_N))


def tuning_table(results: StudyResults, setting: str) -> Table:
    """What the tuning runs of a setting scored: an arm a row, a learning rate a column, the chosen one in brackets."""
    tunings = {arm: t for arm in results.study.arms if (t := results.tunings.get((setting, arm)))}
    rates = sorted({rate for tuning in tunings.values() for rate in tuning.scores})
    scores = [score for tuning in tunings.values() for score in tuning.scores.values()]
    low, width = min(scores, default=0.0), max(np.ptp(scores) if scores else 0.0, 1e-9)
    rows, shades = [], []
    for arm, tuning in tunings.items():
        rows.append([arm, *(_score(tuning, rate) for rate in rates), rate_of(tuning)])
        shades.append([(tuning.scores.get(rate, low) - low) / width for rate in rates] + [0.0])
    return Table(setting, ["arm", *map(format_rate, rates), "chosen"], rows, shades=shades)


def _score(tuning: Tuning, rate: float) -> str:
    if rate not in tuning.scores:
        return ""
    collapsed = sum(map(has_collapsed, tuning.records[rate]))
    text = f"{100 * tuning.scores[rate]:.1f}"
    text = f"[{text}]" if rate == tuning.best else text
    return text + (f", {_collapsed(collapsed, len(tuning.records[rate]))}" if collapsed else "")


def rate_of(tuning: Tuning) -> str:
    """The chosen learning rate, and whether it lies on the edge of those tried."""
    if tuning.best is None:
        return MISSING
    return format_rate(tuning.best) + (" (edge)" if tuning.is_on_edge else "")


def format_rate(rate: float) -> str:
    """A learning rate.

    Example:
        >>> format_rate(0.00015), format_rate(0.003)
        ('1.5e-4', '3e-3')
    """
    digits, exponent = f"{rate:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def percent(estimate: Estimate, sign: str = "", digits: int = 1) -> str:
    """An estimate in percent, with its interval if it has one."""
    text = f"{100 * estimate.value:{sign}.{digits}f}"
    if np.isnan(estimate.low):
        return text
    return f"{text} [{100 * estimate.low:{sign}.{digits}f}, {100 * estimate.high:{sign}.{digits}f}]"


def _points(estimate: Estimate) -> str:
    """A difference in points with half the width of its interval."""
    half = "" if np.isnan(estimate.low) else f" ± {50 * (estimate.high - estimate.low):.1f}"
    return f"{100 * estimate.value:+.1f}{half}"


def _of_all(reached: int, seeds: int) -> str:
    return "" if reached == seeds else f" ({reached}/{seeds})"


def _collapsed(collapsed: int, seeds: int) -> str:
    return f"{collapsed}/{seeds} ↓"
