"""Make a policy of the prefix-scan task: supervised training on a noisy teacher.

Array names end in their axes: `_N` sequences, `_L` token positions, `_V` vocabulary, `_M` problems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.tasks.policy import EOS_ID, PAD_ID, SYMBOLS, build_model, build_tokenizer, exact_pass_rates
from coba_rl.tasks.prefix_scan import MAX_OPERATORS, OPERATORS, PrefixScan
from coba_rl.tasks.teacher import Teacher

if TYPE_CHECKING:
    import torch

_FIRST_OPERATOR_ID = SYMBOLS.index("+")
_EQUALS_ID = SYMBOLS.index("=")
_MUON_LR, _ADAM_LR = 7e-3, 5e-3
_WARMUP_STEPS, _DECAY_SHARE = 30, 0.6


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts, each followed by an answer of the teacher, padded on the right."""

    ids_NL: np.ndarray
    """int64: token ids."""
    target_NLV: np.ndarray
    """float32: teacher's distribution of the next token; all zero where there is nothing to learn."""


def draw_batch(teacher: Teacher, rng: np.random.Generator, num_sequences: int) -> Batch:
    """Draw random prompts and the teacher's answers, with the distribution it wrote each digit from.

    Training on distributions instead of the drawn digits removes most of the gradient's noise.

    Args:
        teacher: Who answers.
        rng: Source of randomness, advanced in place.
        num_sequences: N.

    Returns:
        Sequences of 3·8 + 2 positions; the end-of-sequence token is only a target.

    Example:
        >>> batch = draw_batch(Teacher.of_regime("hard", 0), np.random.default_rng(0), 4)
        >>> batch.ids_NL.shape, batch.target_NLV.shape
        ((4, 26), (4, 26, 19))
    """
    rows = np.arange(num_sequences)
    length_N = rng.integers(1, MAX_OPERATORS + 1, num_sequences)
    digits = rng.integers(0, 10, (num_sequences, MAX_OPERATORS + 1))
    operators = rng.integers(0, len(OPERATORS), (num_sequences, MAX_OPERATORS))
    uniform = rng.random((num_sequences, MAX_OPERATORS))
    ids_NL = np.full((num_sequences, 3 * MAX_OPERATORS + 2), PAD_ID)
    target_NLV = np.zeros((*ids_NL.shape, len(SYMBOLS) + 2), dtype=np.float32)
    equals_N = 2 * length_N + 1  # position of "="
    ids_NL[rows, equals_N] = _EQUALS_ID
    ids_NL[:, 0] = digits[:, 0]
    value_N = digits[:, 0].copy()
    for step in range(MAX_OPERATORS):
        live = rows[step < length_N]
        operator, operand = operators[live, step], digits[live, step + 1]
        ids_NL[live, 2 * step + 1] = _FIRST_OPERATOR_ID + operator
        ids_NL[live, 2 * step + 2] = operand
        distribution = teacher.probability_FD[operator, value_N[live], operand]
        written = (distribution.cumsum(axis=1) < uniform[live, step, None]).sum(axis=1).clip(max=9)
        target_NLV[live, equals_N[live] + step, :10] = distribution
        ids_NL[live, equals_N[live] + step + 1] = written
        value_N[live] = written
    target_NLV[rows, equals_N + length_N, EOS_ID] = 1
    return Batch(ids_NL, target_NLV)


def warmstart(
    regime: str,
    seed: int = 0,
    output_dir: str | Path | None = None,
    *,
    steps: int = 1000,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Train a policy on the teacher of a regime and save it as a transformers checkpoint.

    The loss is the Kullback-Leibler divergence from the teacher to the student, averaged over the tokens of the
    answers. Weights are a function of the arguments on one machine, whatever the number of threads torch has.

    Args:
        regime: `hard`, `heterogeneous` or `moderate`.
        seed: Seed of the teacher, the initial weights and the training prompts.
        output_dir: Folder of the checkpoint, made if missing; None saves nothing.
        steps: Optimiser steps.
        batch_size: Sequences a step.
        progress: Called after every step with the steps done and `steps`.

    Returns:
        `divergence` (nats a token, over the last tenth of the steps), `mean_pass_rate` and `heldout_pass_rate` (exact,
        over the default prompts), `teacher_pass_rate`, and `pass_rate_error` (mean absolute difference between the
        student's and the teacher's pass rates).

    Raises:
        ConfigError: Unknown regime, a count below 1, or a torch without the Muon optimiser.

    Example:
        >>> sorted(warmstart("hard", steps=1, batch_size=2))[:2]
        ['divergence', 'heldout_pass_rate']
    """
    import torch

    for option, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{option}={value!r}, expected at least 1.")
    teacher, model, tokenizer = Teacher.of_regime(regime, seed), build_model(seed), build_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fixes the order of floating-point sums
    try:
        divergence = _train(model, teacher, np.random.default_rng([seed, 3]), steps, batch_size, progress)
    finally:
        torch.set_num_threads(threads)
    task = PrefixScan(regime=regime)
    problems = task.train_problems()
    student_M, teacher_M = exact_pass_rates(model, tokenizer, problems), teacher.pass_rates(problems)
    metrics = {
        "divergence": divergence,
        "mean_pass_rate": float(student_M.mean()),
        "heldout_pass_rate": float(exact_pass_rates(model, tokenizer, task.heldout_problems()).mean()),
        "teacher_pass_rate": float(teacher_M.mean()),
        "pass_rate_error": float(np.abs(student_M - teacher_M).mean()),
    }
    if output_dir is not None:
        model.save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        card = _CARD.format(
            regime=regime, seed=seed, steps=steps, batch_size=batch_size, operators=MAX_OPERATORS, **metrics
        )
        (Path(output_dir) / "README.md").write_text(card, encoding="utf-8")
    return metrics


def _train(
    model: torch.nn.Module,
    teacher: Teacher,
    rng: np.random.Generator,
    steps: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> float:
    """Train in place; returns the mean divergence over the last tenth of the steps."""
    import torch

    optimisers = _optimisers(model)
    peaks = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    model.train()
    history: list[float] = []
    for step in range(steps):
        batch = draw_batch(teacher, rng, batch_size)
        scale = min(1.0, (step + 1) / _WARMUP_STEPS, (steps - step) / (_DECAY_SHARE * steps))
        for optimiser, peak in zip(optimisers, peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * scale
            optimiser.zero_grad()
        target = torch.from_numpy(batch.target_NLV)
        log_p = model(torch.from_numpy(batch.ids_NL)).logits.log_softmax(-1)
        loss = torch.nn.functional.kl_div(log_p, target, reduction="sum") / target.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        history.append(loss.item())
        if progress is not None:
            progress(step + 1, steps)
    model.eval()
    return float(np.mean(history[-max(1, steps // 10) :]))


def _optimisers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the rest: AdamW alone needs several times the steps to find the operands."""
    import torch

    muon: Any = getattr(torch.optim, "Muon", None)
    if muon is None:
        raise ConfigError(
            f"The warm start needs torch 2.9 or later for torch.optim.Muon; this is {torch.__version__}."
        )
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else rest).append(parameter)
    return [
        muon(matrices, lr=_MUON_LR, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=_ADAM_LR, betas=(0.9, 0.98), weight_decay=0.01),
    ]


_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# prefix-scan policy, {regime} regime

A tiny Qwen2 model that completes prompts such as `3+8*2-5=` with the running value modulo 10 after every operator
(`127`), and often gets it wrong: a starting point for reinforcement learning, of no other use. It was trained from
scratch on a noisy teacher, without outside data. One character is one token; it was trained for 1 to {operators} operators.

Made by `coba-rl warmstart --regime {regime} --seed {seed} --output-dir DIR`: {steps} steps of {batch_size} sequences.

| over the default prompts, at temperature 1 | |
|---|---|
| mean pass rate, training prompts | {mean_pass_rate:.4f} |
| mean pass rate, held-out prompts | {heldout_pass_rate:.4f} |
| mean pass rate of the teacher, training prompts | {teacher_pass_rate:.4f} |
| mean absolute difference from the teacher's pass rates | {pass_rate_error:.4f} |
| divergence from the teacher, nats a token | {divergence:.4f} |
"""
