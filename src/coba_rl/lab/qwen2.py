"""Qwen2's forward pass on sequences that stand end to end: no padding, no work for positions that nobody reads.

The weights are those of a transformers model, so optimisers and `save_pretrained` see nothing of this.

Axes: `_N` new tokens of a pass, `_Q` those of them whose logits are asked for, `_B` blocks of consecutive tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, Qwen2ForCausalLM

from coba_rl.errors import ConfigError

KeyValues = dict[tuple[int, int], torch.Tensor]
"""Keys and values (tokens, twice the heads, head size) of what was read, by layer and block."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a pass reads. The tokens of a block see only tokens of that block, new ones and those read before."""

    token_N: torch.Tensor
    depth_N: torch.Tensor
    """Tokens before each in its sequence."""
    visible_B: list[torch.Tensor]
    """Of each block (its new tokens, its tokens read before and new ones): 0 where the latter is seen, else −∞."""
    read_Q: torch.Tensor
    """Positions after which the next token's logits are asked for, ascending."""

    def read_visible_B(self) -> list[torch.Tensor]:
        """`visible_B` of the positions in `read_Q` only."""
        end_B = np.cumsum([len(visible) for visible in self.visible_B])
        rows_B = np.split(self.read_Q.numpy(), np.searchsorted(self.read_Q.numpy(), end_B[:-1]))
        start_B = end_B - list(map(len, self.visible_B))
        return [v[rows - start] for v, rows, start in zip(self.visible_B, rows_B, start_B, strict=True)]


def check_qwen2(model: PreTrainedModel) -> None:
    """Raise where `next_token_logits` would not compute what the model does.

    Raises:
        ConfigError: Another architecture, sliding windows, or rotary embeddings of another type.
    """
    config: Any = model.config
    if not isinstance(model, Qwen2ForCausalLM) or not (
        set(config.layer_types) == {"full_attention"} and config.rope_parameters["rope_type"] == "default"
    ):
        raise ConfigError(
            f"The policy is a {type(model).__name__}: expected a Qwen2ForCausalLM with full attention in every layer "
            "and rotary embeddings of the default type. The lab knows no other architecture."
        )


def next_token_logits(
    model: Any, tokens: Tokens, before: KeyValues | None = None
) -> tuple[torch.Tensor, KeyValues]:
    """(Q, V) logits of the token after each position that is read, and the keys and values of all that was read.

    Args:
        model: A model that passes `check_qwen2`.
        tokens: What is read.
        before: Keys and values of what was read before, left as they are; None when nothing was.
    """
    body, kept = model.model, dict(before or {})
    angle = torch.outer(tokens.depth_N.float(), body.rotary_emb.inv_freq)
    rotation = torch.stack([angle.cos(), angle.sin()])[:, :, None]
    distinct, place_N = tokens.token_N.unique(return_inverse=True)
    x, every = body.embed_tokens(distinct), tokens.visible_B
    for layer in body.layers:
        heads = _projections(layer, x)
        if layer is body.layers[0]:  # until here, a token is the same wherever it stands
            x, *heads = (
                F.embedding(place_N, rows.flatten(1)).view(-1, *rows.shape[1:]) for rows in (x, *heads)
            )
        query, key, value = heads
        query, both = _rotate(query, rotation), torch.cat([_rotate(key, rotation), value], dim=1)
        visible_B = every
        if layer is body.layers[-1]:  # above the last layer's keys and values, only what is read matters
            x, query, visible_B = x[tokens.read_Q], query[tokens.read_Q], tokens.read_visible_B()
        x = _block_output(layer, x, _attention(layer, query, both, every, visible_B, kept))
    return model.lm_head(_norm(body.norm, x)), kept


def _projections(layer: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values, (tokens, heads, head size) each, not yet rotated."""
    attention, hidden = layer.self_attn, _norm(layer.input_layernorm, x)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [project(hidden).unflatten(1, (-1, attention.head_dim)) for project in projections]


def _attention(
    layer: Any,
    query: torch.Tensor,
    both: torch.Tensor,
    new_B: list[torch.Tensor],
    visible_B: list[torch.Tensor],
    kept: KeyValues,
) -> torch.Tensor:
    """What each query takes from the keys and values that it sees, (queries, hidden); `kept` takes in the new ones."""
    seen = []
    queries = query.split([len(visible) for visible in visible_B])
    new = both.split([len(visible) for visible in new_B])
    for block, (mine, here, visible) in enumerate(zip(queries, new, visible_B, strict=True)):
        place = (layer.self_attn.layer_idx, block)
        kept[place] = torch.cat([kept[place], here]) if place in kept else here
        if len(mine):
            seen.append(_attend(mine, *kept[place].chunk(2, dim=1), visible))
    return torch.cat(seen).flatten(1)


def _block_output(layer: Any, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    x = x + layer.self_attn.o_proj(seen)
    mlp, hidden = layer.mlp, _norm(layer.post_attention_layernorm, x)
    return x + mlp.down_proj(F.silu(mlp.gate_proj(hidden)) * mlp.up_proj(hidden))


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """(queries, heads, head size) of (tokens, heads, head size) each."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=grouped)[0].transpose(0, 1)


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (tokens, heads, head size)."""
    (cos, sin), (first, second) = rotation, x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)
