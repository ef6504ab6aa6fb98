"""A trainer of one's own, in plain torch, that asks before the rollouts and tells after them.

    python examples/own_trainer.py

trains the embedded policy on the embedded task for a few steps. A host gives `BudgetSession` three answers: which
prompts, where their numbers of rollouts go, and what came back. The three places are marked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coba_rl import BudgetAllocator
from coba_rl.hosts.session import BudgetSession, FinishedStep, Outcome
from coba_rl.tasks.base import Problem
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

PROMPTS, ROLLOUTS = 8, 8
"""Of a step; of a prompt on average."""

Judge = Callable[[Problem, int, str], float | None]
"""(problem, which of its rollouts, text) → success; NaN cannot be judged, None never came back."""


class OwnTrainer:
    """GRPO with one update a step."""

    def __init__(
        self, allocator: BudgetAllocator, problems: Sequence[Problem], judge: Judge, folder: Path
    ) -> None:
        self.problems, self.judge, self.folder = problems, judge, folder
        self.policy = AutoModelForCausalLM.from_pretrained(policy_path("hard"))
        self.tokenizer = AutoTokenizer.from_pretrained(policy_path("hard"))
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-4)
        self.session = BudgetSession(
            allocator, settings={"rollouts": ROLLOUTS}, data_ids=lambda: [p.prompt_id for p in problems]
        )

    def train(self, steps: int, resume: bool = False) -> list[FinishedStep]:
        """Train up to a step, from the last checkpoint or from the start."""
        self.session.begin(steps)
        done = self.load() if resume else 0
        finished = [self.step(number) for number in range(done + 1, steps + 1)]
        self.save(steps)
        return finished

    def step(self, number: int) -> FinishedStep:
        """Allocate, generate, judge, learn."""
        torch.manual_seed(number)
        batch = [self.problems[i] for i in self.order(number)]
        ids = [problem.prompt_id for problem in batch]
        allocation = self.session.plan(ids, PROMPTS * ROLLOUTS, groups=ids)  # 1. which prompts
        rows = [(p, i) for p, n in zip(batch, allocation.budgets, strict=True) for i in range(n)]
        tokens, start = self.generate([problem.prompt for problem, _ in rows])  # 2. where their numbers go
        texts = self.tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)
        judged = [self.judge(problem, i, text) for (problem, i), text in zip(rows, texts, strict=True)]
        lengths = self.written(tokens, start).sum(dim=1).tolist()
        self.session.record(  # 3. what came back
            Outcome(problem.prompt_id, i, success, length=length)
            for (problem, i), success, length in zip(rows, judged, lengths, strict=True)
            if success is not None
        )
        success_R = np.array([np.nan if success is None else success for success in judged])
        advantage_R = advantages(success_R, allocation.repeat_index)
        advantage_R *= torch.tensor(
            self.session.weigh()[allocation.repeat_index]
        )  # 1 each unless the mode weighs
        self.learn(tokens, start, advantage_R)
        return self.session.finish(number)

    def order(self, number: int) -> list[int]:
        """Every prompt once an epoch."""
        epoch, first = divmod((number - 1) * PROMPTS, len(self.problems) // PROMPTS * PROMPTS)
        return np.random.default_rng(epoch).permutation(len(self.problems))[first : first + PROMPTS].tolist()

    def generate(self, prompts: list[str]) -> tuple[torch.Tensor, int]:
        """Tokens of prompts and completions, and where the completions start."""
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        tokens = self.policy.generate(**inputs, do_sample=True, max_new_tokens=9, top_k=0)
        return tokens, inputs["input_ids"].shape[1]

    def written(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Which tokens after the start are a completion's, its end included."""
        is_end = (tokens[:, start:] == self.tokenizer.eos_token_id).long()
        return is_end.cumsum(dim=1) == is_end

    def learn(self, tokens: torch.Tensor, start: int, advantage_R: torch.Tensor) -> None:
        """One step up the advantage, a mean over tokens."""
        mask = self.written(tokens, start)
        logits = self.policy(tokens, attention_mask=(tokens != self.tokenizer.pad_token_id).long()).logits
        log_p = logits[:, start - 1 : -1].log_softmax(-1).gather(-1, tokens[:, start:, None])[..., 0]
        loss = -(log_p * advantage_R[:, None] * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def save(self, step: int) -> None:
        """Write a checkpoint; the session's file says what it has learnt of the prompts."""
        self.session.save(self.folder)
        state = {"step": step, "policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.folder / "trainer.pt")

    def load(self) -> int:
        """Go back to the checkpoint; its step."""
        for warning in self.session.load(self.folder):
            print(warning)
        state = torch.load(self.folder / "trainer.pt", weights_only=True)
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]


def advantages(success_R: np.ndarray, group_R: np.ndarray) -> torch.Tensor:
    """(R,) success against the mean of the prompt's own rollouts, over their spread; 0 where nothing can be compared."""
    advantage_R = np.zeros(len(success_R))
    for group in np.unique(group_R):
        here = (group_R == group) & ~np.isnan(success_R)
        if here.sum() > 1 and np.ptp(success_R[here]) > 0:
            advantage_R[here] = (success_R[here] - success_R[here].mean()) / success_R[here].std(ddof=1)
    return torch.tensor(advantage_R, dtype=torch.float32)


def main() -> None:
    task = PrefixScan(regime="hard", num_train=64)

    def judge(problem: Problem, index: int, text: str) -> float | None:
        return task.score(text, problem.answer)

    allocator = BudgetAllocator("coba", bounds=(2, 32))
    with tempfile.TemporaryDirectory() as folder:
        trainer = OwnTrainer(allocator, task.train_problems(), judge, Path(folder))
        for number, (records, metrics) in enumerate(trainer.train(steps=12), 1):
            budgets = [record.budget for record in records]
            print(f"step {number}: success {metrics['coba/success_per_prompt']:.2f}, budgets {budgets}")


if __name__ == "__main__":
    main()
