"""TRL on data of one's own: a file of prompts and answers, a reward, and budgets for each prompt.

    python examples/trl_own_data.py data.jsonl           # rows like {"prompt": "3+8=", "answer": "1"}

Without a file it writes one with sums modulo 10, which the embedded policy can learn on a CPU. For a model of yours
change `MODEL`; everything else of `GRPOConfig` is there as always. `coba-rl train --dataset data.jsonl --model MODEL`
does the same with checkpoints that resume, held-out accuracy and a report.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset

from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.tasks.policy import policy_path

MODEL = str(policy_path("hard"))


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the expected answer: `answer` is the column of the data."""
    return [float(text.strip() == truth) for text, truth in zip(completions, answer, strict=True)]


def write_sums(file: Path) -> None:
    rows = [{"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(10) for b in range(10)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(file: Path, output_dir: Path) -> None:
    on_gpu = torch.cuda.is_available()
    config = CobaGRPOConfig(
        output_dir=str(output_dir),
        strategy="coba",
        min_budget=2,
        max_budget=64,
        num_generations=8,  # the mean budget
        per_device_train_batch_size=256,  # 32 prompts a step
        max_completion_length=4,
        max_steps=8,
        learning_rate=3e-4,
        logging_steps=1,
        report_to="none",
        use_cpu=not on_gpu,
        bf16=on_gpu,
    )
    data = load_dataset("json", data_files=str(file), split="train", cache_dir=str(output_dir / "cache"))
    trainer = CobaGRPOTrainer(model=MODEL, reward_funcs=right, args=config, train_dataset=data)
    trainer.train()
    for log in trainer.state.log_history:
        if "coba/budget_max" in log:
            fewest, most = (int(log[f"coba/budget_{end}"]) for end in ("min", "max"))
            print(f"success {log['coba/success_per_prompt']:.2f}, {fewest} to {most} rollouts a prompt")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = [Path(argument) for argument in sys.argv[1:]]
        if not given:
            write_sums(folder / "sums.jsonl")
        main(given[0] if given else folder / "sums.jsonl", folder / "run")
