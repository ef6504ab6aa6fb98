"""The sections of a run's report that hold figures; each says so where the run has nothing for it."""

from __future__ import annotations

import numpy as np

from coba_rl.evaluate import Estimate
from coba_rl.report import figures
from coba_rl.report.figures import Curve, ValueStage
from coba_rl.report.page import Figure, Section, Table
from coba_rl.report.records import RunRecords
from coba_rl.report.series import (
    ROLLOUTS_COLUMNS,
    Windows,
    budget_by_bin,
    moving_average,
    rollouts_by_bin,
    rollouts_cells,
    tokens_so_far,
    transition_table,
    value_stages,
    visit_transitions,
)


def learning_section(run: RunRecords) -> Section:
    """Success over the steps, and over what was generated."""
    title = "Learning, and what it cost"
    success_S = run.metric("coba/success_per_prompt")
    if not np.isfinite(success_S).any():
        text = "No step has logged its success, so there is no learning curve."
        return Section("learning", title, [text])
    heldout = run.heldout_accuracy
    marks = [(float(step), estimate) for step, estimate in heldout]
    curve = _curve(success_S, run.step_S, marks)
    svg = figures.curve_figure("figure-learning", "Success at each step", curve, "step")
    caption = (
        "Each dot is one step: the mean over its prompts of the share of rollouts that succeeded. Every "
        "step has other prompts, so dots scatter."
    )
    if marks:
        caption += " Marks with bars are accuracy on held-out problems, with the 95 % interval over problems."
    shown = [Figure("Learning curve", svg, caption)]
    if len(run.allocations):
        unit, spent = _spent(run)
        marks = [(float(spent[step]), estimate) for step, estimate in heldout]
        curve = _curve(success_S, spent[run.step_S], marks)
        svg = figures.curve_figure("figure-cost", f"Success by {unit} generated", curve, f"{unit} so far")
        caption = (
            f"The same success against all {unit} generated so far, which is what a run costs. The further left a "
            f"height is reached, the cheaper it was. The {unit} of the held-out measurements are not counted."
        )
        shown.append(Figure("Cost against accuracy", svg, caption))
    return Section("learning", title, [shown])


def _curve(success_S: np.ndarray, x_S: np.ndarray, heldout: list[tuple[float, Estimate]]) -> Curve:
    """Training success over `x_S`, with the held-out accuracies at their places."""
    width = max(1, len(success_S) // 20) | 1
    label = "training success" if width == 1 else f"training, mean of {width} steps"
    return Curve(label, x_S, success_S, moving_average(success_S, width), heldout)


def _spent(run: RunRecords) -> tuple[str, np.ndarray]:
    """Unit and (1 + last step,) amount generated up to each step, from step 0: tokens, or rollouts without their lengths."""
    unit, spent = "tokens", tokens_so_far(run)
    if spent is None:
        unit, spent = "rollouts", np.cumsum(np.bincount(run.allocations.step_A, run.allocations.budget_A))
    last = max(run.steps_done, *(record.step for record in run.heldout), 0)
    return unit, np.pad(spent, (0, max(0, last + 1 - len(spent))), mode="edge")


def budget_section(run: RunRecords) -> Section:
    """Where the rollouts went."""
    title = "Where the rollouts went"
    if not len(run.allocations):
        text = "The run has no allocation records, so budgets cannot be shown."
        return Section("budgets", title, [text])
    steps = run.allocations.step_A
    budgets = budget_by_bin(run.allocations, Windows.over(int(steps.min()), int(steps.max())))
    shares = Figure(
        "Share of rollouts",
        figures.budget_shares_figure("figure-budget-shares", budgets),
        "How each step's rollouts were divided over prompts, by the pass rate believed when allocating: "
        "dark is hard, light is easy, hatched grey is unknown. A wide band may be a large budget for each "
        "prompt, or just many prompts.",
    )
    means = Figure(
        "Budget of one prompt",
        figures.mean_budget_figure("figure-mean-budget", budgets),
        "The mean number of rollouts that a prompt of each believed pass rate got. From one colour to the "
        "next the budget doubles; white means that no prompt was there.",
    )
    note = (
        "A believed pass rate is the strategy's estimate, not the truth: success is what the rollouts "
        "then showed. A prompt never tried before counts as unknown, or under the pass rate its strategy "
        "assumes for it."
    )
    return Section("budgets", title, [*_weights_text(run), [shares, means], _rollouts_table(run), note])


def _weights_text(run: RunRecords) -> list[str]:
    """That the loss was weighted, where it was."""
    low_S, high_S = run.metric("coba/weight_min"), run.metric("coba/weight_max")
    if not np.isfinite(low_S).any():
        return []
    return [
        "The loss was weighted: advantages were multiplied by "
        f"{np.nanmin(low_S):.2f} to {np.nanmax(high_S):.2f}, by what the strategy made of the step's outcomes."
    ]


def _rollouts_table(run: RunRecords) -> Table:
    title = "All steps together, by the pass rate believed at the time"
    return Table(title, ROLLOUTS_COLUMNS, list(map(rollouts_cells, rollouts_by_bin(run.allocations))))


def preference_section(run: RunRecords) -> Section:
    """How capable the policy was, and which pass rates were therefore preferred."""
    title = "Capability and preference"
    drawn = [figure for figure in (_capability_figure(run), _value_figure(run)) if figure]
    if not drawn:
        text = (
            f"The strategy {run.strategy or 'of this run'} logged no α and no value of its prompts: figures of "
            "capability and value are left out."
        )
        return Section("preference", title, [text])
    return Section("preference", title, [drawn])


def _capability_figure(run: RunRecords) -> Figure | None:
    """F̄, F̃ and α over time; None for a strategy without α."""
    alpha_S = run.metric("coba/alpha")
    if not np.isfinite(alpha_S).any():
        return None
    failure_S, transformed_S = run.metric("coba/failure_rate"), run.metric("coba/transformed_failure_rate")
    has_transform = np.isfinite(transformed_S).any()
    svg = figures.capability_figure(
        "figure-capability", run.step_S, failure_S, transformed_S if has_transform else None, alpha_S
    )
    caption = "Above: F̄, the share of rollouts that fail, averaged over prompts and recent steps" + (
        ", and F̃, which falls faster once F̄ is below a threshold (Eq. 6)." if has_transform else "."
    )
    caption += (
        " Below: α, which together with β sets the preferred pass rates: a high α prefers easy prompts."
    )
    return Figure("F̄, F̃ and α" if has_transform else "F̄ and α", svg, caption)


def _value_figure(run: RunRecords) -> Figure | None:
    """Values and budgets by pass rate at the start, the middle and the end; None where no values were recorded."""
    told = run.allocations
    known_A = np.isfinite(told.value_A) & np.isfinite(told.pass_rate_A)
    if not known_A.any():
        return None
    step_A, rate_A, value_A, budget_A = (
        column[known_A] for column in (told.step_A, told.pass_rate_A, told.value_A, told.budget_A)
    )
    stages = [
        ValueStage(step, *(column[step_A == step] for column in (rate_A, value_A, budget_A)))
        for step in value_stages(step_A, budget_A)
    ]
    svg = figures.value_figure("figure-value", stages)
    caption = (
        "Above: what the strategy thought a prompt of each believed pass rate was worth at the step's mean budget "
        "(for CoBA, V(B, p) of Eq. 9); points are prompts of the step, joined in the order of their pass rates. "
        "Below: the rollouts that the same prompts were given (scale in factors of 2). The first stage is the first "
        "step with uneven budgets: before it, too little was known to prefer."
    )
    return Figure("Value and budget by pass rate", svg, caption)


def dead_groups_section(run: RunRecords) -> Section:
    """All-wrong and all-right groups over time."""
    title = "Dead groups"
    wrong_S, right_S = (run.metric(f"coba/dead_groups_all_{end}") for end in ("wrong", "right"))
    if not np.isfinite(wrong_S + right_S).any():
        return Section("dead-groups", title, ["No step has logged its dead groups, so they cannot be shown."])
    windows = Windows.over(int(run.step_S.min()), int(run.step_S.max()))
    wrong_W, right_W = (windows.mean(run.step_S, values) for values in (wrong_S, right_S))
    svg = figures.dead_groups_figure("figure-dead-groups", windows, wrong_W, right_W)
    caption = (
        "A group whose rollouts all fail or all succeed gives no gradient. The height of both bands "
        "together is the share of groups that were dead. Fewer dead groups is not more learning: larger "
        "groups are dead less often wherever they are spent."
    )
    return Section("dead-groups", title, [[Figure("All wrong and all right", svg, caption)]])


def transition_section(run: RunRecords) -> Section:
    """Difficulty of each prompt at its first visit against its last."""
    title = "From hard to easy"
    transitions = visit_transitions(run.allocations)
    if transitions is None:
        text = "No prompt was tried at two visits or more, so there are no changes of difficulty to show."
        return Section("transitions", title, [text])
    num_prompts = int(transitions.counts.sum())
    caption = f"{num_prompts:,} prompts by pass rate at the first visit (rows) and at the last (columns)"
    note = (
        "Darker cells hold more of their row. Right of the diagonal, prompts became easier. These are "
        "noisy: each pass rate is the success of one visit's rollouts, sometimes very few, so a prompt "
        "changes class by luck too."
    )
    table = transition_table(caption, "first visit", transitions, lambda count, _: f"{count:,}")
    return Section("transitions", title, [table, note])
