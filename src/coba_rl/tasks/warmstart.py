"""Make a policy of an embedded task: supervised training on a noisy teacher.

Array names end in their axes: `_N` sequences, `_L` token positions, `_V` vocabulary, `_M` problems.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.tasks.embedded import make_embedded
from coba_rl.tasks.policy import build_model, build_tokenizer, exact_pass_rates
from coba_rl.tasks.prefix_scan_teacher import PrefixScanTeacher
from coba_rl.tasks.string_transform_teacher import StringTransformTeacher
from coba_rl.tasks.teacher import Teacher

if TYPE_CHECKING:
    import torch

_MUON_LR, _ADAM_LR = 7e-3, 5e-3
_WARMUP_STEPS, _DECAY_SHARE = 30, 0.6

TEACHERS: dict[str, type[Teacher]] = {
    "prefix-scan": PrefixScanTeacher,
    "string-transform": StringTransformTeacher,
}
"""Whom the policies of each embedded task learn from."""


def warmstart(
    regime: str,
    seed: int = 0,
    output_dir: str | Path | None = None,
    *,
    task: str = "prefix-scan",
    steps: int = 1000,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Train a policy on the teacher of a regime and save it as a transformers checkpoint.

    The loss is the Kullback-Leibler divergence from the teacher to the student, averaged over the tokens of the
    answers. Weights are a function of the arguments on one machine, whatever the number of threads torch has.

    Args:
        regime: One of the task's regimes.
        seed: Seed of the teacher, the initial weights and the training prompts.
        output_dir: Folder of the checkpoint, made if missing; None saves nothing.
        task: Name of an embedded task.
        steps: Optimiser steps.
        batch_size: Sequences a step.
        progress: Called after every step with the steps done and `steps`.

    Returns:
        `divergence` (nats a token, over the last tenth of the steps), `mean_pass_rate` and `heldout_pass_rate` (exact,
        over the default prompts), `teacher_pass_rate`, and `pass_rate_error` (mean absolute difference between the
        student's and the teacher's pass rates).

    Raises:
        OptionError: Unknown task.
        ConfigError: Unknown regime, a count below 1, or a torch without the Muon optimiser.

    Example:
        >>> sorted(warmstart("hard", steps=1, batch_size=2))[:2]
        ['divergence', 'heldout_pass_rate']
    """
    import torch

    for option, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{option}={value!r}, expected at least 1.")
    made = make_embedded(task, regime=regime)
    teacher = TEACHERS[task].of_regime(regime, seed)
    model, tokenizer = build_model(seed, type(made)), build_tokenizer(type(made))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fixes the order of floating-point sums
    try:
        divergence = _train(model, teacher, np.random.default_rng([seed, 3]), steps, batch_size, progress)
    finally:
        torch.set_num_threads(threads)
    problems = made.train_problems()
    student_M, teacher_M = exact_pass_rates(model, tokenizer, problems), teacher.pass_rates(problems)
    metrics = {
        "divergence": divergence,
        "mean_pass_rate": float(student_M.mean()),
        "heldout_pass_rate": float(exact_pass_rates(model, tokenizer, made.heldout_problems()).mean()),
        "teacher_pass_rate": float(teacher_M.mean()),
        "pass_rate_error": float(np.abs(student_M - teacher_M).mean()),
    }
    if output_dir is not None:
        model.save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        card = _CARD.format(
            task=task,
            regime=regime,
            seed=seed,
            about=fill(_ABOUT.format(made.policy_card), 119),
            steps=steps,
            batch_size=batch_size,
            **metrics,
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
        batch = teacher.draw_batch(rng, batch_size)
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


_ABOUT = (
    "A tiny Qwen2 model that {}. It often gets the answer wrong: a starting point for reinforcement learning, of no other "
    "use. It was trained from scratch on a noisy teacher, without outside data. One character is one token."
)

_CARD = """\
---
license: apache-2.0
library_name: transformers
---
# {task} policy, {regime} regime

{about}

Made by `coba-rl warmstart --task {task} --regime {regime} --seed {seed} --output-dir DIR`: {steps} steps of {batch_size} sequences.

| over the default prompts, at temperature 1 | |
|---|---|
| mean pass rate, training prompts | {mean_pass_rate:.4f} |
| mean pass rate, held-out prompts | {heldout_pass_rate:.4f} |
| mean pass rate of the teacher, training prompts | {teacher_pass_rate:.4f} |
| mean absolute difference from the teacher's pass rates | {pass_rate_error:.4f} |
| divergence from the teacher, nats a token | {divergence:.4f} |
"""
