"""Reward functions for verl, built on coba-rl's verifiers.

Choose one with `reward.custom_reward_function.path=pkg://coba_rl.hosts.verl.rewards` and
`reward.custom_reward_function.name=math` (or `prefix_scan`).
"""

from __future__ import annotations

import math as _math
from typing import Any

from coba_rl.tasks.math_verifier import score_answer
from coba_rl.tasks.prefix_scan import PrefixScan


def math(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    r"""Judge the final answer of a solution with math-verify.

    Args:
        data_source: Not used.
        solution_str: The completion.
        ground_truth: The answer, LaTeX or plain.
        extra_info: Not used.

    Returns:
        `score` to train on, 0 or 1, and `acc`, which is NaN where the ground truth is beyond parsing: the rollout then
        counts neither as a success nor as an attempt.

    Example:
        >>> math("math_dapo", r"So \boxed{34}.", "34")
        {'score': 1.0, 'acc': 1.0}
        >>> math("math_dapo", r"So \boxed{34}.", "")
        {'score': 0.0, 'acc': nan}
    """
    return _as_result(score_answer(solution_str, ground_truth))


def prefix_scan(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """Judge a completion of the embedded task.

    Example:
        >>> prefix_scan("prefix-scan", "127", "127")
        {'score': 1.0, 'acc': 1.0}
    """
    return _as_result(PrefixScan().score(solution_str, ground_truth))


def _as_result(score: float | None) -> dict[str, float]:
    return {"score": score or 0.0, "acc": _math.nan if score is None else score}
