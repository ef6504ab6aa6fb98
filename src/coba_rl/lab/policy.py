"""A transformers checkpoint as the lab uses it: exact merged sampling, exact pass rates, one GRPO update.

Axes: `_P` prompts of the step, `_U` unique rollouts (a prompt's equal completions merged, with a count),
`_T` tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coba_rl.lab.prefix_tree import PrefixTree, build_tree
from coba_rl.lab.prefixes import Prefixes, bias
from coba_rl.lab.qwen2 import Tokens, check_qwen2, next_token_logits
from coba_rl.tasks.base import Problem

_BATCH = 128  # problems of a forward pass whose activations fit the processor's cache


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

    def only(self, chosen_U: np.ndarray) -> UniqueRollouts:
        """Those at some positions, which ascend."""
        completions = [self.completions[i] for i in chosen_U]
        return UniqueRollouts(self.prompt_U[chosen_U], completions, self.count_U[chosen_U])

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
        return replace(self.only(before), count_U=count_U2[before, side]), before, side == 1


class LabPolicy:
    """The policy, its tokenizer, and the problems' token ids.

    Args:
        path: Folder of a Qwen2 model.
        max_new_tokens: Tokens of a completion.

    Raises:
        ConfigError: Another architecture.
    """

    def __init__(self, path: str | Path, max_new_tokens: int) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, trust_remote_code=False
        ).eval()
        check_qwen2(self.model)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        self._max_new_tokens = max_new_tokens
        self._eos = self._tokenizer.eos_token_id
        self._token_ids: Any = cache(self._tokenize)  # the same problems come back all through a run

    def _tokenize(self, text: str, is_prompt: bool) -> list[int]:
        return self._tokenizer(text, add_special_tokens=is_prompt).input_ids

    def decode(self, completion: Sequence[int]) -> str:
        """Text of a completion; one that never ended is marked, so that it cannot pass by accident."""
        text = self._tokenizer.decode(list(completion), skip_special_tokens=True)
        return text if completion and completion[-1] == self._eos else text + "…"

    def _prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        return [self._token_ids(problem.prompt, True) for problem in problems]

    def read(self, problems: Sequence[Problem]) -> ReadProblems:
        """Read the prompts of P problems once, for all that is to follow at these weights."""
        answers = [self._token_ids(problem.answer, False) for problem in problems]
        prefixes = Prefixes.of_prompts(self.model, self._prompts(problems))
        return ReadProblems(prefixes, answers, self._eos, self._max_new_tokens)

    def tree(self, problems: Sequence[Problem], rollouts: UniqueRollouts) -> PrefixTree:
        """What is read, and what is predicted, to find how likely the rollouts of P problems are."""
        return build_tree(self._prompts(problems), rollouts.prompt_U, rollouts.completions)

    def log_probabilities(self, tree: PrefixTree) -> torch.Tensor:
        """(E,) log π of the tokens that the tree's edges predict, in double precision, with its gradient."""
        read_Q, row_E = np.unique(tree.source_E, return_inverse=True)
        visible_B = [bias(tree.visible(block)) for block in tree.blocks()]
        tokens = Tokens(
            *map(torch.from_numpy, (tree.token_N, tree.depth_N)), visible_B, torch.from_numpy(read_Q)
        )
        logits, _ = next_token_logits(self.model, tokens)
        return logits.double().log_softmax(-1)[row_E, tree.target_E]

    def pass_rates(self, problems: Sequence[Problem]) -> np.ndarray:
        """(M,) exact pass rates of any number of problems with one right completion each."""
        batches = [problems[start : start + _BATCH] for start in range(0, len(problems), _BATCH)]
        return np.concatenate([self.read(batch).pass_rates() for batch in batches])


@dataclass(frozen=True, eq=False)
class ReadProblems:
    """Problems whose prompts a policy has read: what it would answer. Valid until its weights change."""

    prefixes: Prefixes
    answers: list[list[int]]
    """Token ids of the right answers, end-of-sequence left out."""
    eos: int
    max_new_tokens: int

    def answer_log_probabilities(self) -> np.ndarray:
        """(P, T) log π of each token of the right answers, end-of-sequence included; NaN after it."""
        length_P = np.array(list(map(len, self.answers))) + 1
        inside_PT = np.arange(length_P.max()) < length_P[:, None]
        target_PT = np.zeros(inside_PT.shape, dtype=np.int64)
        target_PT[inside_PT] = [token for answer in self.answers for token in (*answer, self.eos)]
        logits_PTV = np.zeros((*inside_PT.shape, self.prefixes.logits.shape[1]))
        logits_PTV[:, 0] = self.prefixes.logits
        logits_PTV[:, 1:][inside_PT[:, 1:]] = self.prefixes.follow(self.answers)
        log_p_PTV = torch.from_numpy(logits_PTV).log_softmax(-1).numpy()
        log_p_PT = np.take_along_axis(log_p_PTV, target_PT[:, :, None], axis=2)[:, :, 0]
        return np.where(inside_PT, log_p_PT, np.nan)

    def pass_rates(self) -> np.ndarray:
        """(P,) exact pass rates, where the right answer is the only one: the mean success of infinitely many rollouts."""
        return np.exp(np.nansum(self.answer_log_probabilities(), axis=1))

    def graded_scores(self) -> np.ndarray:
        """(P,) expected scores of a graded task, Σ_t Π_{s≤t} π_s / T: the mean share of T tokens before the first error."""
        return np.nanmean(np.exp(self.answer_log_probabilities().cumsum(axis=1)), axis=1)

    def sample(self, budgets: np.ndarray, rng: np.random.Generator) -> UniqueRollouts:
        """Draw `budgets[i]` independent completions of problem i at temperature 1.

        Rollouts that share a prefix share its forward pass: at each token the count of a prefix is split by a
        multinomial draw, which is the same distribution as drawing each rollout on its own.

        Args:
            budgets: (P,) rollouts of each.
            rng: The only source of randomness.
        """
        prefixes, prompt_rows, counts = (
            self.prefixes,
            np.arange(len(budgets)),
            np.asarray(budgets, dtype=np.int64),
        )
        paths = np.zeros((len(budgets), 0), dtype=np.int64)
        done: list[tuple[int, tuple[int, ...], int]] = []
        for step in range(self.max_new_tokens):
            split = rng.multinomial(counts, _probabilities(prefixes.logits))
            parent, token = np.nonzero(split)
            counts, prompt_rows = split[parent, token], prompt_rows[parent]
            paths = np.concatenate([paths[parent], token[:, None]], axis=1)
            ended = (token == self.eos) | (step == self.max_new_tokens - 1)
            found = (prompt_rows[ended].tolist(), map(tuple, paths[ended].tolist()), counts[ended].tolist())
            done += zip(*found, strict=True)
            if ended.all():
                break
            going = ~ended
            counts, prompt_rows, paths = counts[going], prompt_rows[going], paths[going]
            prefixes = prefixes.extend(parent[going], token[going])
        rows, completions, numbers = zip(*sorted(done), strict=True)
        return UniqueRollouts(np.array(rows), list(completions), np.array(numbers))


def _probabilities(logits: torch.Tensor) -> np.ndarray:
    """Rows of next-token probabilities in float64 whose sum never exceeds 1, as multinomial demands."""
    p = torch.softmax(logits.double(), dim=-1).numpy()
    return p / np.maximum(p.sum(axis=1, keepdims=True), 1.0)
