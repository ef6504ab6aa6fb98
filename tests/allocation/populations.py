"""Policies whose true pass rates are known at every step, to hold estimators to.

Each is a function of a generator that returns the truth: step → (N,) pass rates of the prompts 0 … N − 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coba_rl.allocation.estimators import PassRateEstimator, Visits
from coba_rl.allocation.estimators.logits import sigmoid

N, BATCH = 256, 64
Truth = Callable[[int], np.ndarray]


def logits(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(-1.5, 1.7, N)


def steady(rates: np.ndarray) -> Truth:
    return lambda step: rates


def moving(base: np.ndarray, logit_at: Callable[[np.ndarray, int], np.ndarray]) -> Truth:
    return lambda step: sigmoid(logit_at(base, step))


def after(step_of_change: int, first: np.ndarray, then: np.ndarray) -> Truth:
    return lambda step: first if step < step_of_change else then


def polarised(rng: np.random.Generator, never: float, always: float) -> np.ndarray:
    rates = np.r_[np.zeros(round(never * N)), np.ones(round(always * N))]
    return np.r_[rates, rng.uniform(0.05, 0.95, N - len(rates))]


def dead_beside(rng: np.random.Generator, share: float, live: Truth) -> Truth:
    dead = np.arange(N) < share * N
    return lambda step: np.where(dead, 0.0, live(step))


def with_luck(rates: np.ndarray, guess_rate: float) -> np.ndarray:
    return guess_rate + (1.0 - guess_rate) * rates


HALVES = np.r_[np.zeros(N // 2), np.ones(N // 2)]

SMOOTH: dict[str, Callable[[np.random.Generator], Truth]] = {
    "all alike": lambda rng: steady(np.full(N, 0.3)),
    "uniform": lambda rng: steady(np.linspace(0.0, 1.0, N)),
    "wide": lambda rng: steady(sigmoid(logits(rng))),
    "rising": lambda rng: moving(logits(rng), lambda x, t: x + 0.025 * t),
    "falling": lambda rng: moving(logits(rng), lambda x, t: x + 3.0 - 0.025 * t),
    "oscillating": lambda rng: moving(logits(rng), lambda x, t: x + 1.5 * np.sin(t / 40)),
    "oscillating fast": lambda rng: moving(logits(rng), lambda x, t: x + 1.5 * np.sin(t / 10)),
    "sharpening": lambda rng: moving(logits(rng), lambda x, t: x * (1.0 + 0.05 * t)),
    "drawing together": lambda rng: moving(logits(rng), lambda x, t: x / (1.0 + 0.02 * t)),
}
"""Pass rates strictly between 0 and 1 that change slowly or not at all."""

SUDDEN: dict[str, Callable[[np.random.Generator], Truth]] = {
    "one jump": lambda rng: moving(logits(rng), lambda x, t: x + 2.5 * (t >= 100)),
    "up and down": lambda rng: moving(logits(rng), lambda x, t: x + 2.5 * ((t // 50) % 2)),
    "flip": lambda rng: moving(logits(rng), lambda x, t: x if t < 100 else -x),
}
"""Everything changes within a step."""

POLARISED: dict[str, Callable[[np.random.Generator], Truth]] = {
    "none passes": lambda rng: steady(np.zeros(N)),
    "all pass": lambda rng: steady(np.ones(N)),
    "half and half": lambda rng: steady(HALVES),
    "45 % never, 45 % always": lambda rng: steady(polarised(rng, 0.45, 0.45)),
    "60 % never": lambda rng: dead_beside(rng, 0.6, steady(sigmoid(logits(rng)))),
    "60 % never, the others rising": lambda rng: dead_beside(
        rng, 0.6, moving(logits(rng), lambda x, t: x + 0.02 * t)
    ),
    "halves swap": lambda rng: after(100, HALVES, 1.0 - HALVES),
    "none passes, then 40 %": lambda rng: after(200, np.zeros(N), np.full(N, 0.4)),
    "all pass, then 40 %": lambda rng: after(200, np.ones(N), np.full(N, 0.4)),
    "solved one by one": lambda rng: lambda step: (np.arange(N) < step * N / 200).astype(float),
}
"""Many prompts at 0 or 1, whose outcomes carry no information."""


@dataclass(frozen=True)
class Errors:
    """Of an estimator that followed a population, after the first epoch."""

    rmse: float
    covered: float
    """Share of true rates inside the 90 % intervals; NaN for estimators without."""
    typical: float
    """Mean distance of the rate of a prompt never seen from the population's mean."""


def follow(
    estimator: PassRateEstimator,
    truth: Truth,
    rng: np.random.Generator,
    rollouts: int,
    steps: int = 300,
    guess_rate: float = 0.0,
) -> Errors:
    """Epochs of shuffled batches with even budgets; rollouts that would fail pass with chance `guess_rate`."""
    squared, covered, typical = [], [], []
    order: list[int] = []
    for step in range(steps):
        order = order or rng.permutation(N).tolist()
        batch, order = order[:BATCH], order[BATCH:]
        rates = truth(step)
        if step * BATCH >= N:
            squared.append(np.mean((estimator.estimate(batch) - rates[batch]) ** 2))
            typical.append(abs(estimator.estimate(["never seen"])[0] - rates.mean()))
            interval = estimator.interval(batch, 0.9)
            if interval is not None:
                covered.append(np.mean((interval[0] <= rates[batch]) & (rates[batch] <= interval[1])))
        passed = rng.binomial(rollouts, with_luck(rates[batch], guess_rate)).astype(float)
        estimator.update(Visits(batch, passed, np.full(BATCH, float(rollouts))))
    return Errors(
        float(np.sqrt(np.mean(squared))),
        float(np.mean(covered)) if covered else np.nan,
        float(np.mean(typical)),
    )
