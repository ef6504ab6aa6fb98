"""The race of the solvers, with the paper's heap as the paper prints it."""

from __future__ import annotations

import heapq
import math
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from coba_rl.allocation.solvers import SOLVERS, fast, heap
from coba_rl.allocation.value import Gains, KnapsackGains, VarianceGains, coba_gains, coba_value
from coba_rl.bench.race import HIGH, LOW, MEAN_BUDGET, Effort, Part, pass_rates, race

ALPHA, BETA, TAU = 3.0, 8.0, 0.1


def value_in_floats(budget: int, p: float) -> float:
    """`coba_value` of one prompt in Python floats."""
    normaliser = math.lgamma(ALPHA + BETA) - math.lgamma(ALPHA) - math.lgamma(BETA)
    density = math.exp(normaliser + (ALPHA - 1.0) * math.log(p) + (BETA - 1.0) * math.log1p(-p))
    return (1.0 - math.exp(-budget / TAU * p * (1.0 - p))) * density


def value_in_numpy(budget: int, p: float) -> float:
    """`coba_value` of one prompt."""
    return float(coba_value(budget, np.asarray(p), ALPHA, BETA, TAU))


def printed_heap(value: Callable[[int, float], float], p_P: np.ndarray, total: int) -> np.ndarray:
    """Algorithm 1 as the paper prints it: gains are differences of V, one pop and one push a rollout.

    Args:
        value: V(B, p).
        p_P: Pass rates.
        total: Rollouts to spend.

    Example:
        >>> printed_heap(value_in_floats, np.array([0.2, 0.5, 0.9]), 12).tolist()
        [6, 4, 2]
    """
    p = p_P.tolist()
    budgets = [LOW] * len(p)
    queue = [(value(LOW, p_i) - value(LOW + 1, p_i), i) for i, p_i in enumerate(p)]
    heapq.heapify(queue)
    remaining = total - LOW * len(p)
    while remaining > 0 and queue:
        _, i = heapq.heappop(queue)
        budgets[i] += 1
        remaining -= 1
        if budgets[i] < HIGH:
            heapq.heappush(queue, (value(budgets[i], p[i]) - value(budgets[i] + 1, p[i]), i))
    return np.array(budgets)


_LARGEST = {
    "dynamic programming": 64,
    "heap as printed": 512,
    "heap as printed, V in floats": 32_768,
    "heap": 32_768,
}
"""Most prompts of solvers that take seconds beyond them."""


def measure_solvers(effort: Effort, advance: Callable[[], None]) -> Part:
    """Every solver on one batch of each size."""
    part = Part(
        "solvers",
        "Solvers",
        f"One batch of M prompts, {MEAN_BUDGET}·M rollouts, bounds ({LOW}, {HIGH}). Ratio: time to that of `fast`.",
    )
    for size in effort.sizes:
        p_P, total = pass_rates(size), MEAN_BUDGET * size
        gains = coba_gains(p_P, ALPHA, BETA, TAU)
        calls: dict[str, Callable[[], np.ndarray]] = {
            "fast": lambda p=p_P, n=total: fast(coba_gains(p, ALPHA, BETA, TAU), n, LOW, HIGH),
            "fast, knapsack": lambda p=p_P, n=total: fast(KnapsackGains(p), n, LOW, HIGH),
            "fast, variance": lambda p=p_P, n=total: fast(VarianceGains(p), n, LOW, HIGH),
            "heap": partial(heap, gains, total, LOW, HIGH),
            "heap as printed": partial(printed_heap, value_in_numpy, p_P, total),
            "heap as printed, V in floats": partial(printed_heap, value_in_floats, p_P, total),
            "dynamic programming": partial(SOLVERS["dynamic-programming"], gains, total, LOW, HIGH),
        }
        calls = {name: call for name, call in calls.items() if size <= _LARGEST.get(name, size)}
        part.rows += race(calls, "fast", size, effort)
        budgets = calls["fast"]()
        if "heap" in calls:
            part.facts[f"M = {size:,}: budgets are the heap's"] = np.array_equal(budgets, calls["heap"]())
        else:
            part.facts[f"M = {size:,}: no rollout is worth more elsewhere"] = is_optimal(gains, budgets)
            part.facts[f"M = {size:,}: peak memory of `fast`, MB"] = peak_megabytes(calls["fast"])
        advance()
    if len(effort.sizes) > 2:  # the first is so small that calls, not prompts, cost
        _, first, *_, last = effort.sizes
        seconds = {row.prompts: row.seconds for row in part.rows if row.name == "fast"}
        growth = seconds[last] / seconds[first] / (last / first)
        part.facts[f"M = {first:,} to {last:,}: growth of the time of `fast` to that of M"] = growth
    return part


def is_optimal(gains: Gains, budgets: np.ndarray) -> bool:
    """Whether every rollout bought is worth at least as much as every one that was not."""
    left = gains.log_gain(np.minimum(budgets, HIGH - 1))[budgets < HIGH]
    kept = gains.log_gain(np.maximum(budgets - 1, LOW))[budgets > LOW]
    return bool(left.max(initial=-np.inf) <= kept.min(initial=np.inf))


def peak_megabytes(call: Callable[[], object]) -> float:
    """Most memory that a call holds at a time, arrays included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
