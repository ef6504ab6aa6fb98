"""A transformers checkpoint as the lab uses it: exact merged sampling, exact pass rates, one GRPO update.

Axes: `_P` prompts of the step, `_U` unique rollouts (a prompt's equal completions merged, with a count),
`_T` tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from coba_rl.lab.prefix_tree import build_tree, pack
from coba_rl.tasks.base import Problem
from coba_rl.tasks.policy import exact_pass_rates


@dataclass(frozen=True, eq=False)
class UniqueRollouts:
    """A step's rollouts, equal completions of one prompt merged as long as they score the same."""

    prompt_U: np.ndarray
    """(U,) position of the prompt in the batch, ascending."""
    completions: list[tuple[int, ...]]
    """Token ids of each, end-of-sequence included when it was sampled."""
    count_U: np.ndarray
    """(U,) how many rollouts had this completion."""

    @property
    def num_tokens(self) -> int:
        """Generated tokens of all rollouts."""
        return sum(n * len(c) for n, c in zip(self.count_U.tolist(), self.completions, strict=True))

    def split(self, apart_U: np.ndarray) -> tuple[UniqueRollouts, np.ndarray, np.ndarray]:
        """Rollouts of equal completions that do not score the same, as unique rollouts of their own.

        Args:
            apart_U: (U,) how many of each are set apart, from 0 to `count_U`.

        Returns:
            The rollouts, as many or more; of each the position that it had before; and whether it was set apart.

        Example:
            >>> rollouts = UniqueRollouts(np.array([0, 1]), [(1,), (2,)], np.array([4, 3]))
            >>> parted, before, is_apart = rollouts.split(np.array([1, 0]))
            >>> parted.count_U.tolist(), before.tolist(), is_apart.tolist()
            ([3, 1, 3], [0, 0, 1], [False, True, False])
        """
        count_U2 = np.stack([self.count_U - apart_U, apart_U], axis=1)
        before, side = np.nonzero(count_U2)
        completions = [self.completions[i] for i in before]
        return UniqueRollouts(self.prompt_U[before], completions, count_U2[before, side]), before, side == 1


class LabPolicy:
    """The policy, its tokenizer, and the problems' token ids.

    Args:
        path: Folder of a causal language model.
        max_new_tokens: Tokens of a completion.
    """

    def __init__(self, path: str | Path, max_new_tokens: int) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False
        ).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            path, padding_side="left", trust_remote_code=False
        )
        self._max_new_tokens = max_new_tokens
        self._eos = self._tokenizer.eos_token_id

    def decode(self, completion: Sequence[int]) -> str:
        """Text of a completion; one that never ended is marked, so that it cannot pass by accident."""
        text = self._tokenizer.decode(list(completion), skip_special_tokens=True)
        return text if completion and completion[-1] == self._eos else text + "…"

    def _prompts(self, problems: Sequence[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
        encoded = self._tokenizer([problem.prompt for problem in problems], return_tensors="pt", padding=True)
        return encoded["input_ids"], encoded["attention_mask"]

    @torch.no_grad()
    def sample(
        self, problems: Sequence[Problem], budgets: np.ndarray, rng: np.random.Generator
    ) -> UniqueRollouts:
        """Draw `budgets[i]` independent completions of problem i at temperature 1.

        Rollouts that share a prefix share its forward pass: at each token the count of a prefix is split by a
        multinomial draw, which is the same distribution as drawing each rollout on its own.

        Args:
            problems: P problems with text prompts.
            budgets: (P,) rollouts of each.
            rng: The only source of randomness.
        """
        ids, mask = self._prompts(problems)
        prompt_rows = np.arange(len(problems))
        counts = np.asarray(budgets, dtype=np.int64)
        paths = np.zeros((len(problems), 0), dtype=np.int64)
        cache = DynamicCache(config=self.model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        done: list[tuple[int, tuple[int, ...], int]] = []
        for step in range(self._max_new_tokens):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
            split = rng.multinomial(counts, _probabilities(logits))
            parent, token = np.nonzero(split)
            counts, prompt_rows = split[parent, token], prompt_rows[parent]
            paths = np.concatenate([paths[parent], token[:, None]], axis=1)
            ended = (token == self._eos) | (step == self._max_new_tokens - 1)
            done += zip(
                prompt_rows[ended].tolist(),
                map(tuple, paths[ended].tolist()),
                counts[ended].tolist(),
                strict=True,
            )
            if ended.all():
                break
            going = ~ended
            parent, token = torch.from_numpy(parent[going]), torch.from_numpy(token[going])
            counts, prompt_rows, paths = counts[going], prompt_rows[going], paths[going]
            cache.batch_select_indices(parent)
            positions = positions[parent, -1:] + 1
            mask = torch.cat([mask[parent], mask.new_ones(len(parent), 1)], dim=1)
            ids = token[:, None]
        rows, completions, numbers = zip(*sorted(done), strict=True)
        return UniqueRollouts(np.array(rows), list(completions), np.array(numbers))

    def weighted_log_likelihood(
        self, problems: Sequence[Problem], rollouts: UniqueRollouts, weight_U: np.ndarray
    ) -> torch.Tensor:
        """Σ_U weight · log π(completion | prompt), with its gradient, in one pass over the shared prefixes.

        Args:
            problems: The P problems of the step.
            rollouts: U completions of them.
            weight_U: (U,) weights; rollouts of weight 0 are left out. At least one is not 0.
        """
        used = np.flatnonzero(weight_U)
        prompts = self._tokenizer([problem.prompt for problem in problems]).input_ids
        completions = [rollouts.completions[i] for i in used]
        tree = build_tree(prompts, rollouts.prompt_U[used], completions, weight_U[used])
        rows = pack(tree)
        hidden = self.model.model(
            input_ids=torch.from_numpy(rows.token_RL),
            attention_mask=torch.from_numpy(rows.visible_RLL)[:, None],
            position_ids=torch.from_numpy(rows.depth_RL),
            use_cache=False,
        ).last_hidden_state
        source = torch.from_numpy(rows.flat_N[tree.source_E])
        logits = self.model.lm_head(hidden.flatten(0, 1)[source])
        log_p = torch.log_softmax(logits, dim=-1).gather(1, torch.from_numpy(tree.target_E)[:, None])[:, 0]
        return (torch.from_numpy(tree.weight_E).to(log_p.dtype) * log_p).sum()

    def pass_rates(self, problems: Sequence[Problem]) -> np.ndarray:
        """(P,) exact pass rates, see `exact_pass_rates`."""
        return exact_pass_rates(self.model, self._tokenizer, problems)


def _probabilities(logits: torch.Tensor) -> np.ndarray:
    """Rows of next-token probabilities in float64 whose sum never exceeds 1, as multinomial demands."""
    p = torch.softmax(logits.double(), dim=-1).numpy()
    return p / np.maximum(p.sum(axis=1, keepdims=True), 1.0)
