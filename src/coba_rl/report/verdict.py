"""What a run shows, in words that never say more than its intervals allow."""

from __future__ import annotations

import math
from typing import Any

from coba_rl.report.records import RunRecords
from coba_rl.report.series import MEAN_LENGTH, generated_tokens

_FEW_PROBLEMS = 20
"""Below this many problems a bootstrap interval is too narrow to lean on (see `evaluate.mean_estimate`)."""


def verdict(run: RunRecords) -> list[str]:
    """One sentence or two a paragraph, the main one first."""
    heldout = (run.summary or {}).get("heldout") or {}
    paragraphs = [heldout_verdict(heldout)]
    if run.summary is None:
        planned = f" of {run.planned_steps:,}" if run.planned_steps else ""
        paragraphs.insert(
            0, f"This run is not finished: the records end at step {run.steps_done:,}{planned}."
        )
    if heldout.get("gain"):
        paragraphs.append(
            "This is one run: training again with another seed may end elsewhere, and the interval does "
            "not cover that. One run does not say which strategy is better."
        )
    return paragraphs


def heldout_verdict(heldout: dict[str, Any]) -> str:
    """Whether held-out accuracy rose, fell, or cannot be told apart from no change.

    Args:
        heldout: `heldout` of a run's summary: `before`, `after` and `gain`, each None or a dictionary of
            `value`, `low` and `high`.

    Example:
        >>> estimate = {"value": 0.2, "low": -0.1, "high": 0.5}
        >>> heldout_verdict({"before": estimate, "after": estimate, "gain": estimate, "num_problems": 50})
        'Held-out accuracy went from 0.200 to 0.200. The 95 % interval of the change, over problems, is \
[-0.100, 0.500]: it includes zero, so this run does not show a change.'
    """
    before, after, gain = (heldout.get(key) for key in ("before", "after", "gain"))
    if not (before and after and gain):
        return (
            "Held-out accuracy was not measured before and after, so this report cannot say whether the policy "
            "improved."
        )
    low, high = (math.nan if gain[key] is None else gain[key] for key in ("low", "high"))
    moved = f"from {before['value']:.3f} to {after['value']:.3f}"
    if math.isnan(low) or math.isnan(high):
        return f"Held-out accuracy went {moved}. There is no interval for the change, so chance cannot be ruled out."
    interval = f"[{low:.3f}, {high:.3f}]"
    if low > 0.0:
        text = f"Held-out accuracy rose {moved}. The 95 % interval of the gain, over problems, is {interval}."
    elif high < 0.0:
        text = (
            f"Held-out accuracy fell {moved}. The 95 % interval of the change, over problems, is {interval}."
        )
    else:
        text = (
            f"Held-out accuracy went {moved}. The 95 % interval of the change, over problems, is {interval}: "
            "it includes zero, so this run does not show a change."
        )
    problems = heldout.get("num_problems")
    if problems is not None and problems < _FEW_PROBLEMS:
        text += f" With only {problems} problems the interval is too narrow to rely on."
    return text


def key_facts(run: RunRecords) -> list[list[str]]:
    """Rows of the table of facts."""
    task = run.config.get("task", {})
    training = run.config.get("training", {})
    facts = [["strategy", run.strategy]]
    if task.get("name"):
        regime = task.get("regime") if task["name"] == "prefix-scan" else task.get("dataset")
        facts.append(["task", " · ".join(str(part) for part in (task["name"], regime) if part)])
    facts.append(["steps", f"{run.steps_done:,}"])
    if "seed" in training:
        facts.append(["seed", str(training["seed"])])
    if len(run.allocations):
        budget_A = run.allocations.budget_A
        low, high = int(budget_A.min()), int(budget_A.max())
        facts.append(["rollouts", f"{int(budget_A.sum()):,}"])
        tokens = generated_tokens(run.step_S, run.metric(MEAN_LENGTH), run.allocations)
        if tokens is not None:
            facts.append(["generated tokens", f"{tokens:,}"])
        facts.append(["rollouts of a prompt", f"{low}" if low == high else f"{low} to {high}"])
    heldout = (run.summary or {}).get("heldout") or {}
    for key, label in (("before", "held-out before"), ("after", "held-out after"), ("gain", "gain")):
        if heldout.get(key):
            facts.append([f"{label} (95 % interval)", _estimate(heldout[key])])
    if heldout.get("gain"):
        facts.append(["held-out problems", f"{heldout['num_problems']:,} × {heldout['num_samples']} samples"])
    seconds = (run.summary or {}).get("seconds")
    if seconds is not None:
        facts.append(["training time", f"{seconds:.0f} s"])
    return facts


def _estimate(estimate: dict[str, float | None]) -> str:
    value, low, high = (
        "–" if estimate[key] is None else f"{estimate[key]:.3f}" for key in ("value", "low", "high")
    )
    return f"{value} [{low}, {high}]"
