"""What a run shows, in words that never say more than its intervals allow."""

from __future__ import annotations

import math

from coba_rl.records import Estimate, HeldoutSummary
from coba_rl.report.records import RunRecords
from coba_rl.report.series import generated_tokens

_FEW_PROBLEMS = 20
"""Below this many problems a bootstrap interval is too narrow to lean on (see `evaluate.mean_estimate`)."""


def verdict(run: RunRecords) -> list[str]:
    """One sentence or two a paragraph, the main one first."""
    heldout = None if run.summary is None else run.summary.heldout
    paragraphs = [heldout_verdict(heldout)]
    if run.summary is None:
        planned = f" of {run.planned_steps:,}" if run.planned_steps else ""
        paragraphs.insert(
            0, f"This run is not finished: the records end at step {run.steps_done:,}{planned}."
        )
    if heldout and heldout.gain:
        paragraphs.append(
            "This is one run: training again with another seed may end elsewhere, and the interval does "
            "not cover that. One run does not say which strategy is better."
        )
    return paragraphs


def heldout_verdict(heldout: HeldoutSummary | None) -> str:
    """Whether held-out accuracy rose, fell, or cannot be told apart from no change.

    Args:
        heldout: Of a run's summary; None while there is none.

    Example:
        >>> estimate = Estimate(0.2, -0.1, 0.5)
        >>> heldout_verdict(HeldoutSummary(16, 50, before=estimate, after=estimate, gain=estimate))
        'Held-out accuracy went from 0.200 to 0.200. The 95 % interval of the change, over problems, is \
[-0.100, 0.500]: it includes zero, so this run does not show a change.'
    """
    if heldout is None or heldout.before is None or heldout.after is None or heldout.gain is None:
        return (
            "Held-out accuracy was not measured before and after, so this report cannot say whether the policy "
            "improved."
        )
    low, high = heldout.gain.low, heldout.gain.high
    moved = f"from {heldout.before.value:.3f} to {heldout.after.value:.3f}"
    if math.isnan(low) or math.isnan(high):
        return f"Held-out accuracy went {moved}. There is no interval for the change, so chance cannot be ruled out."
    rose, fell = low > 0.0, high < 0.0
    verb = "rose" if rose else "fell" if fell else "went"
    text = (
        f"Held-out accuracy {verb} {moved}. The 95 % interval of the {'gain' if rose else 'change'}, over problems, "
        f"is [{low:.3f}, {high:.3f}]"
    )
    text += "." if rose or fell else ": it includes zero, so this run does not show a change."
    if heldout.num_problems < _FEW_PROBLEMS:
        text += f" With only {heldout.num_problems} problems the interval is too narrow to rely on."
    return text


def key_facts(run: RunRecords) -> list[list[str]]:
    """Rows of the table of facts."""
    task, seed = run.config.get("task", {}), run.config.get("training", {}).get("seed")
    named = [str(task[key]) for key in ("name", "regime", "dataset") if task.get(key)]
    facts = {
        "strategy": run.strategy,
        "task": " · ".join(named),
        "steps": f"{run.steps_done:,}",
        "seed": None if seed is None else str(seed),
        **_spent_facts(run),
        **_summary_facts(run),
    }
    return [[name, text] for name, text in facts.items() if text]


def _spent_facts(run: RunRecords) -> dict[str, str | None]:
    if not len(run.allocations):
        return {}
    budget_A = run.allocations.budget_A
    low, high, tokens = int(budget_A.min()), int(budget_A.max()), generated_tokens(run)
    return {
        "rollouts": f"{int(budget_A.sum()):,}",
        "generated tokens": None if tokens is None else f"{tokens:,}",
        "rollouts of a prompt": f"{low}" if low == high else f"{low} to {high}",
    }


def _summary_facts(run: RunRecords) -> dict[str, str | None]:
    if run.summary is None:
        return {}
    heldout = run.summary.heldout
    estimates = {"held-out before": heldout.before, "held-out after": heldout.after, "gain": heldout.gain}
    problems = f"{heldout.num_problems:,} × {heldout.num_samples} samples"
    return {
        **{f"{name} (95 % interval)": _shown(value) for name, value in estimates.items() if value},
        "held-out problems": problems if heldout.gain else None,
        "training time": f"{run.summary.seconds:.0f} s",
    }


def _shown(estimate: Estimate) -> str:
    numbers = (estimate.value, estimate.low, estimate.high)
    value, low, high = ("–" if math.isnan(number) else f"{number:.3f}" for number in numbers)
    return f"{value} [{low}, {high}]"
