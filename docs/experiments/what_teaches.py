"""How much a prompt of each pass rate helps held-out accuracy, from gradients: `python docs/experiments/what_teaches.py`.

At four points of a run with even budgets, the gradient of each training prompt's logit of its pass rate is
multiplied with the gradient of the mean held-out accuracy. The table shows means by pass rate, divided by the mean
over all prompts at that point; in brackets their standard deviation over the prompts.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from transformers.utils import logging

from coba_rl.cli.progress import counting
from coba_rl.lab.config import LabConfig
from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.lab.run import LabRun
from coba_rl.tasks.base import Problem
from coba_rl.tasks.policy import build_tokenizer
from coba_rl.tasks.prefix_scan import PrefixScan

SEED, STEPS, STAGES = 105, 120, (1, 40, 80, 120)
TOKENIZER = build_tokenizer()
EDGES = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0])


def gradient(policy: LabPolicy, problems: list[Problem], weights: np.ndarray) -> torch.Tensor:
    """Gradient of Σ weight · log(pass rate), flat."""
    answers = [
        (*TOKENIZER(problem.answer, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id)
        for problem in problems
    ]
    every = np.arange(len(problems))
    rollouts = UniqueRollouts(every, answers, np.ones_like(every))
    policy.model.zero_grad(set_to_none=True)
    tree = policy.tree(problems, rollouts)
    (torch.from_numpy(tree.sum_by_edge(weights)) * policy.log_probabilities(tree)).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters()])


def help_of_each(policy: LabPolicy, train: list[Problem], heldout: list[Problem]) -> np.ndarray:
    """(2, P) pass rate of each training prompt, and what a small step of its logit adds to held-out accuracy."""
    p_H = policy.pass_rates(heldout)
    goal = gradient(policy, heldout, p_H / len(p_H))
    p_P = policy.pass_rates(train)
    helped = [
        float(gradient(policy, [problem], np.array([1.0 / (1.0 - p)])) @ goal)  # d logit = d log p / (1 − p)
        for problem, p in zip(train, p_P, strict=True)
    ]
    return np.array([p_P, helped])


def row(p_P: np.ndarray, helped_P: np.ndarray) -> list[str]:
    """Cells of one point of the run."""
    helped_P = helped_P / helped_P.mean()
    inside = [(p_P > low) & (p_P <= high) for low, high in pairwise(EDGES)]
    return [f"{helped_P[i].mean():.2f} ({helped_P[i].std():.2f})" if i.sum() >= 8 else "–" for i in inside]


def watch(regime: str) -> None:
    """Run a regime and print its rows."""
    task = PrefixScan(regime=regime, num_train=512)
    heldout = task.heldout_problems()
    with counting(f"{regime}, steps") as progress:

        def measure(step: int, _: object) -> None:
            progress(step, STEPS)
            if step in STAGES:
                found = help_of_each(run.policy, task.train_problems(), heldout)
                print(f"| {regime}, {step} | {' | '.join(row(*found))} |", flush=True)

        run = LabRun(LabConfig(regime=regime, strategy="uniform", seed=SEED, steps=STEPS), measure)
        run.run()


def main() -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"| regime, steps | {' | '.join(f'p ≤ {high}' for high in EDGES[1:])} |")
    print(f"|---|{'---:|' * (len(EDGES) - 1)}")
    for regime in ("hard", "moderate"):
        watch(regime)


if __name__ == "__main__":
    main()
