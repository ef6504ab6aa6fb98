"""The lab learns as TRL does: the same gradient on the same batch, the same learning curves up to chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.lab.config import LabConfig
from coba_rl.lab.grpo import surrogate
from coba_rl.lab.policy import LabPolicy, UniqueRollouts
from coba_rl.lab.run import LabRun
from coba_rl.tasks.policy import exact_pass_rates, policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

TASK = PrefixScan(regime="moderate")
STEPS, PROMPTS, ROLLOUTS, LEARNING_RATE = 15, 32, 16, 3e-4
SEEDS = range(3)


def correct(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    return [TASK.score(text, truth) for text, truth in zip(completions, answer, strict=True)]


class Recording(CobaGRPOTrainer):
    """Keeps the batch and the gradient of the last step."""

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        self.batch = inputs
        return super()._compute_loss(model, inputs)

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(model, *args, **kwargs)
        self.gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
        return loss


def train(folder: Path, seed: int, steps: int) -> Recording:
    set_seed(seed)
    trainer = Recording(
        model=AutoModelForCausalLM.from_pretrained(policy_path("moderate"), dtype=torch.float32),
        reward_funcs=correct,
        args=CobaGRPOConfig(
            output_dir=str(folder), max_steps=steps, seed=seed, strategy="coba", num_generations=ROLLOUTS,
            per_device_train_batch_size=PROMPTS * ROLLOUTS, learning_rate=LEARNING_RATE, weight_decay=0.0,
            lr_scheduler_type="constant", loss_type="dapo", epsilon_high=0.28, beta=0.0, temperature=1.0,
            max_completion_length=TASK.max_completion_length, save_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "answer": p.answer, "prompt_id": p.prompt_id} for p in TASK.train_problems()]
        ),
        processing_class=AutoTokenizer.from_pretrained(policy_path("moderate"), padding_side="left"),
    )  # fmt: skip
    trainer.train()
    return trainer


def test_the_same_batch_gives_the_same_gradient(tmp_path: Path) -> None:
    trainer = train(tmp_path, seed=3, steps=1)
    policy = LabPolicy(policy_path("moderate"), TASK.max_completion_length)
    problems, rollouts, score_U = _merge(trainer, policy)
    assert rollouts.count_U.sum() == PROMPTS * ROLLOUTS
    assert rollouts.count_U.max() > 1  # something was merged
    objective = surrogate(policy, problems, rollouts, score_U)
    assert objective is not None
    log_p_E = policy.log_probabilities(objective.tree)
    loss = objective.loss(log_p_E, log_p_E.detach())
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.model.parameters()))])
    difference = torch.linalg.vector_norm(gradient - trainer.gradient)
    assert difference < 1e-5 * torch.linalg.vector_norm(trainer.gradient)


def _merge(trainer: Recording, policy: LabPolicy) -> tuple[list, UniqueRollouts, np.ndarray]:
    """TRL's batch as the lab holds it."""
    by_prompt = {problem.prompt: problem for problem in TASK.train_problems()}
    tokenizer, batch = trainer.processing_class, trainer.batch
    problems: list = []
    counts: dict[tuple[int, tuple[int, ...]], int] = {}
    for prompt, completion, mask in zip(
        batch["prompt_ids"], batch["completion_ids"], batch["completion_mask"], strict=True
    ):
        problem = by_prompt[tokenizer.decode(prompt, skip_special_tokens=True).replace(" ", "")]
        if problem not in problems:
            problems.append(problem)
        key = (problems.index(problem), tuple(completion[mask.bool()].tolist()))
        counts[key] = counts.get(key, 0) + 1
    keys = sorted(counts)
    rollouts = UniqueRollouts(
        np.array([row for row, _ in keys]), [path for _, path in keys], np.array([counts[k] for k in keys])
    )
    right = [TASK.score(policy.decode(path), problems[row].answer) == 1.0 for row, path in keys]
    return problems, rollouts, np.array(right, dtype=float)


@pytest.mark.timeout(600)
def test_learning_curves_coincide_up_to_chance(tmp_path: Path) -> None:
    heldout = TASK.heldout_problems()
    start = LabPolicy(policy_path("moderate"), TASK.max_completion_length).pass_rates(heldout).mean()
    lab, trl = [], []
    for seed in SEEDS:
        trainer = train(tmp_path / str(seed), seed, STEPS)
        trl.append(exact_pass_rates(trainer.model, trainer.processing_class, heldout).mean())
        config = LabConfig(
            regime="moderate", seed=seed, steps=STEPS, prompts_per_step=PROMPTS, rollouts_per_prompt=ROLLOUTS,
            learning_rate=LEARNING_RATE, evaluate_every=STEPS,
        )  # fmt: skip
        lab.append(LabRun(config).run().final)
    gain = np.mean(lab) - start
    spread = max(float(np.std(lab, ddof=1)), float(np.std(trl, ddof=1)), 0.02)
    print(f"start {start:.3f} lab {np.round(lab, 3)} trl {np.round(trl, 3)}")
    assert gain > 0.05
    assert abs(np.mean(lab) - np.mean(trl)) < 3.0 * spread / np.sqrt(len(SEEDS) / 2)
