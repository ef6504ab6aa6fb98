"""Prefixes of a step's rollouts, each read once and grown by tokens, with the keys and values of all before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from coba_rl.lab.prefix_tree import build_tree
from coba_rl.lab.qwen2 import KeyValues, Tokens, next_token_logits


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Prefixes that were read, ascending by prompt. Growing makes new ones and leaves these as they are."""

    model: Any
    logits: torch.Tensor
    """(prefixes, V) of the token after each."""
    depth: torch.Tensor
    """(prefixes,) tokens before the last."""
    seen_B: list[torch.Tensor]
    """Of each block (its prefixes, its tokens read so far): 0 for those that the prefix consists of, else −∞."""
    key_values: KeyValues

    @classmethod
    @torch.no_grad()
    def of_prompts(cls, model: Any, prompts: list[list[int]]) -> Prefixes:
        """Read prompts, none empty."""
        tree = build_tree(
            prompts, np.arange(len(prompts)), [(0,)] * len(prompts)
        )  # any token: it is not read
        visible_B = [bias(tree.visible(block)) for block in tree.blocks()]
        arrays = map(torch.from_numpy, (tree.token_N, tree.depth_N))
        tokens = Tokens(*arrays, visible_B, torch.from_numpy(tree.source_E))
        logits, key_values = next_token_logits(model, tokens)
        return cls(model, logits, tokens.depth_N[tokens.read_Q], tokens.read_visible_B(), key_values)

    def extend(self, parent: np.ndarray, token: np.ndarray) -> Prefixes:
        """Each new prefix is one of these, by position, and a token; positions ascend."""
        return self._read(parent, token, self.depth[parent] + 1, is_chain=False)

    def follow(self, chains: list[list[int]]) -> torch.Tensor:
        """(tokens, V) logits after each token of the chain that goes on from each prefix; chains end to end."""
        parent = np.repeat(np.arange(len(chains)), list(map(len, chains)))
        offset = torch.from_numpy(np.concatenate([np.arange(len(tokens)) for tokens in chains]))
        token = np.array(list(chain.from_iterable(chains)))
        return self._read(parent, token, self.depth[parent] + 1 + offset, is_chain=True).logits

    @torch.no_grad()
    def _read(self, parent: np.ndarray, token: np.ndarray, depth: torch.Tensor, is_chain: bool) -> Prefixes:
        """Read tokens, each of which sees its parent's prefix, itself, and with `is_chain` its siblings before it."""
        start, visible_B = 0, []
        for seen in self.seen_B:
            first, last = np.searchsorted(parent, [start, start + len(seen)])
            mine = parent[first:last]
            order = np.arange(len(mine))
            siblings = (
                (mine[:, None] == mine) & (order <= order[:, None]) if is_chain else np.eye(len(mine)) > 0
            )
            visible_B.append(torch.cat([seen[mine - start], bias(siblings)], dim=1))
            start += len(seen)
        tokens = Tokens(torch.from_numpy(token), depth, visible_B, torch.arange(len(token)))
        logits, key_values = next_token_logits(self.model, tokens, self.key_values)
        return Prefixes(self.model, logits, depth, visible_B, key_values)


def bias(visible: np.ndarray) -> torch.Tensor:
    """What is added to attention scores: 0 where something is visible, else −∞."""
    return torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
