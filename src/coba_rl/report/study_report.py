"""The report of a study: results → sections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tomli_w

from coba_rl.evaluate import difficulty_transitions
from coba_rl.lab.comparison import MEAN_OF_SETTINGS, Comparison, StudyResults
from coba_rl.lab.learning_curve import COLLAPSE
from coba_rl.lab.result import LabResult
from coba_rl.report.page import Code, Figure, Section, Table
from coba_rl.report.series import transition_table
from coba_rl.report.study_figures import Band, bands_figure, cost_figure
from coba_rl.report.study_tables import (
    comparison_rows,
    counted_seeds,
    format_rate,
    summary_tables,
    target_table,
    tuning_table,
)

_MEASURED = {
    "mechanism": {
        "budget_follows_believed_value": "Rank correlation of budgets with the value of the believed pass rates",
        "budget_follows_true_value": "Rank correlation of budgets with the value of the true pass rates",
        "coba/alpha": "α, the shape of the preferred pass rates",
    },
    "estimates": {
        "pass_rate_rmse": "Error of the pass rates (root mean square)",
        "interval_coverage": "Share of 90 % intervals that hold the true pass rate",
    },
}
"""What `show` adds: measure of a step → title of its figure."""

Spent = Callable[[LabResult, int], float]

_SPENT: dict[str, Spent] = {
    "tokens": lambda record, step: record.tokens_by_step[step],
    "rollouts": lambda record, step: record.rollouts_by_step[step],
}
"""What accuracy is shown over: unit → how much of it a run had generated after a step."""

_SMOOTHED = 8  # steps; a single batch is too noisy to read


def study_sections(results: StudyResults) -> list[Section]:
    """The sections of the page, in the order of reading."""
    study = results.study
    sections = [
        Section("verdict", "What this study shows", _verdict_blocks(results)),
        _learning_section(results, "tokens", "Learning curves"),
    ]
    if results.tunings:
        sections.append(_tuning_section(results))
    sections += [_comparison_section(results), _learning_section(results, "rollouts", "By rollouts")]
    if len({record.config.rollouts for record in results.records}) > 1:
        sections.append(_cost_section(results))
    sections += [_measured_section(results, kind) for kind in study.show if kind in _MEASURED]
    if "transitions" in study.show:
        sections.append(_transition_section(results))
    code = Code("Show the study's configuration", tomli_w.dumps(study.model_dump(exclude_none=True)))
    return [*sections, Section("configuration", "Configuration", [code])]


def _verdict_blocks(results: StudyResults) -> list[str | Table]:
    first, *others = study_verdict(results)
    note = (
        "Runs of a setting are compared at the tokens stated: those that each was to generate, or the fewest that one of "
        "them did. ± is half of a 95 % interval over seeds; cells are shaded where it leaves out no difference: blue is "
        "better than the baseline, orange worse. The target is the highest of the study's accuracies that all runs of the "
        "first baseline reached"
        + (", on the tuning seeds at its chosen learning rate" if results.tunings else "")
        + ". A run that did not reach it counts with the tokens of the comparison, which is less than it would have needed; in "
        "brackets, how many runs reached it where not all did. Percentages are geometric means over pairs of runs. A run collapsed if it ends more than "
        f"{100 * COLLAPSE:.0f} points below its own best, or below where it began."
    )
    return [first, *summary_tables(results), note, *others]


def study_verdict(results: StudyResults) -> list[str]:
    """In words: where each arm is ahead of or behind a baseline, and where the runs cannot tell."""
    study = results.study
    missing = sum(arm not in results.arms(setting) for setting, arm in study.cells)
    paragraphs = [
        f"{len(results.records)} runs: {len(study.arms)} arms in {len(study.settings)} settings, "
        f"{counted_seeds(study)} each. "
        + (f"{missing} of {len(study.cells)} arms in settings have not been run. " if missing else "")
        + "Cost is generated tokens, accuracy is exact, on problems never trained on. Intervals cover seeds: other prompt "
        f"orders and other samples, not other tasks or models. {results.made_by}"
    ]
    if len(study.seeds) < 3:
        return [*paragraphs, "With fewer than three seeds nothing can be said about which arm is better."]
    for baseline in study.baselines:
        for setting in study.settings:
            there = results.arms(setting)
            arms = [arm for arm in there if arm != baseline and baseline in there]
            compared = [results.comparison(setting, arm, baseline, "at equal tokens") for arm in arms]
            if compared:
                paragraphs.append(f"{setting}, against {baseline}: {_verdict(compared)}")
    return paragraphs


def _verdict(compared: list[Comparison]) -> str:
    ahead = [c for c in compared if c.difference.low > 0 and c.wins == c.seeds]
    behind = [c for c in compared if c.difference.high < 0 and c.wins == 0]
    open_ = [c for c in compared if c not in ahead and c not in behind]
    parts = []
    for word, group in (("ahead on every seed", ahead), ("behind on every seed", behind)):
        if group:
            named = ", ".join(f"{c.arm} ({100 * c.difference.value:+.1f} points)" for c in group)
            parts.append(f"{named} {'are' if len(group) > 1 else 'is'} {word}")
    if open_:
        parts.append(f"no clear difference for {', '.join(c.arm for c in open_)}")
    return "; ".join(parts) + "."


def _tuning_section(results: StudyResults) -> Section:
    tune = results.study.tune
    assert tune is not None
    tables = [tuning_table(results, setting) for setting in results.study.settings]
    note = (
        f"Held-out accuracy {tune.by}, in %, mean over the seeds {', '.join(map(str, tune.seeds))}, which are none of those above. "
        "In brackets the best, which the arm runs with; ↓ counts runs that collapsed. A learning rate on the edge of those tried might not be the best "
        "there is."
    )
    if tune.within:
        low, high = map(format_rate, tune.within)
        note += (
            f" Where the best lay on the edge, half or twice as high a rate was tried, from {low} to {high}."
        )
    return Section("tuning", "Learning rates", [note, *tables])


def _comparison_section(results: StudyResults) -> Section:
    blocks: list[str | Table] = []
    for setting in results.groups:
        blocks.append(Table(setting, *comparison_rows(results, setting)))
        if setting != MEAN_OF_SETTINGS and results.targets(setting):
            blocks.append(target_table(results, setting))
    note = (
        "Mean over seeds with its 95 % interval by Student's t. Differences pair the runs of one seed; in brackets, on "
        "how many seeds the arm was ahead. What was spent is that of whole runs. Tokens to an accuracy are medians over "
        "seeds, by linear interpolation; in brackets, how many runs got there where not all did."
    )
    cut = sum(record.tokens < (record.config.tokens or 0) for record in results.records)
    if cut:
        note += f" {cut} runs took all their steps before they had generated their tokens: their last accuracy counts."
    return Section("comparison", "Comparison", [*blocks, note])


def _learning_section(results: StudyResults, unit: str, title: str) -> Section:
    shown = []
    caption = "Mean over seeds; the band reaches from the lowest seed to the highest."
    for i, setting in enumerate(results.study.settings):
        bands = [_curve_band(results.of(setting, arm), arm, _SPENT[unit]) for arm in results.study.arms]
        if any(bands):
            name, heading = f"learning-{unit}-{i}", f"Held-out accuracy by {unit}, {setting}"
            svg = bands_figure(name, heading, bands, f"{unit} generated", "accuracy")
            shown.append(Figure(setting, svg, caption))
    return Section(f"learning-{unit}", title, [shown])


def _curve_band(records: list[LabResult], label: str, spent: Spent) -> Band | None:
    """Accuracy of an arm over what each run had spent, read off where its runs were measured on average."""
    if not records:
        return None
    num = min(len(record.curve) for record in records)  # runs that end by tokens differ in length
    spent_by_run = [np.array([spent(record, step) for step, _ in record.curve], float) for record in records]
    x = np.mean([points[:num] for points in spent_by_run], axis=0)
    accuracy = [
        np.interp(x, points, [value for _, value in record.curve])
        for points, record in zip(spent_by_run, records, strict=True)
    ]
    return Band(label, x, np.array(accuracy))


def _cost_section(results: StudyResults) -> Section:
    """Settings that differ in their budget alone share a figure: those of one regime."""
    by_regime: dict[str, dict[str, list]] = {}
    for setting in results.study.settings:
        for arm in results.arms(setting):
            records = results.of(setting, arm)
            tokens = round(np.mean([record.tokens for record in records]))
            point = (tokens, results.estimate(setting, arm, "final"))
            by_regime.setdefault(records[0].config.regime, {}).setdefault(arm, []).append(point)
    shown = []
    caption = (
        "Every token of the run is counted, those of the first steps too. Bars are 95 % intervals over seeds."
    )
    for i, (regime, arms) in enumerate(by_regime.items()):
        svg = cost_figure(f"cost-{i}", f"Final accuracy against tokens, {regime}", arms)
        shown.append(Figure(regime, svg, caption))
    return Section("cost", "Cost and accuracy", [shown])


def _measured_section(results: StudyResults, kind: str) -> Section:
    shown, rows = [], []
    for key, title in _MEASURED[kind].items():
        for i, setting in enumerate(results.study.settings):
            found = [_step_band(results.of(setting, arm), arm, key) for arm in results.study.arms]
            if not any(found):
                continue
            name = f"{key.replace('/', '-').replace('_', '-')}-{i}"
            svg = bands_figure(name, f"{title}, {setting}", found, "step", "")
            shown.append(Figure(f"{title}: {setting}", svg, f"Averaged over {_SMOOTHED} steps."))
            for band in filter(None, found):
                rows.append([f"{setting}, {band.label}", title, f"{np.nanmean(band.values_NX):.3f}"])
    table = Table("Mean over all steps and seeds", ["arm", "measure", "mean"], rows)
    return Section(kind, {"mechanism": "Mechanism", "estimates": "Pass rates"}[kind], [shown, table])


def _step_band(records: list[LabResult], label: str, key: str) -> Band | None:
    if not records:
        return None
    num = min(len(record.steps) for record in records)  # runs that end by tokens differ in length
    values = np.array([[step.get(key, np.nan) for step in record.steps[:num]] for record in records], float)
    if np.isnan(values).all():
        return None
    whole = values[:, : values.shape[1] // _SMOOTHED * _SMOOTHED]
    if not whole.size:
        return Band(label, np.arange(1, values.shape[1] + 1), values)
    blocks = whole.reshape(len(values), -1, _SMOOTHED)
    counts = (~np.isnan(blocks)).sum(axis=2)
    mean = np.where(counts > 0, np.nansum(blocks, axis=2) / np.maximum(counts, 1), np.nan)
    return Band(label, (np.arange(mean.shape[1]) + 0.5) * _SMOOTHED, mean)


def _transition_section(results: StudyResults) -> Section:
    tables = []
    for setting in results.study.settings:
        for arm in results.arms(setting):
            records = results.of(setting, arm)
            before_N = np.concatenate([record.before for record in records])
            after_N = np.concatenate([record.after for record in records])
            transitions = difficulty_transitions(before_N / 16, after_N / 16)
            caption = f"{setting}, {arm}: % of the training prompts of each class before (rows) by class after (columns)"
            tables.append(
                transition_table(caption, "before", transitions, lambda _, share: f"{100 * share:.1f}")
            )
    note = (
        "Classes are those of the paper, told from 16 rollouts of each prompt; all seeds are counted together. "
        "The last column is the share that ends solved."
    )
    return Section("transitions", "From hard to easy", [*tables, note])
