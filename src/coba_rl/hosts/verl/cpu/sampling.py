"""Batched sampling from a causal language model, reproducible request by request.

Every request carries its own seed and draws one uniform number a token, so what a request gets does not depend
on which requests happen to share its batch (beyond the rounding of a batched matrix product).

Axes: `_U` distinct prompts, `_R` requests, `_B` requests still generating, `_T` new tokens, `_V` vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    DynamicCache,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to turn logits into tokens.

    Raises:
        ValueError: If a field is out of its range.

    Example:
        >>> SamplingParams(max_tokens=4, temperature=0.0).greedy
        True
        >>> SamplingParams(max_tokens=0)
        Traceback (most recent call last):
        ...
        ValueError: max_tokens is 0; it must be at least 1
    """

    max_tokens: int
    """Most tokens to generate, the stop token included; at least 1."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = -1
    """Keep the k most likely tokens, and those as likely as the last of them; 0 or less keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities reach p, in (0, 1]; after `top_k`."""
    stop_token_ids: frozenset[int] = frozenset()
    """Generation ends after one of these, which is kept in the completion."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens!r}; it must be at least 1")
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise ValueError(f"temperature is {self.temperature!r}; it must be a finite number of at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p!r}; it must be in (0, 1]")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken instead of a random one."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    """128 bits; equal seeds, prompts and parameters give equal completions."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids is empty; a prompt needs at least one token")


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated for one request."""

    token_ids: list[int]
    log_probs: list[float]
    """Natural logarithm of the probability each token was drawn with (after temperature, top-k and top-p)."""


def derive_seed(*parts: int) -> int:
    """Hash integers into one 128-bit seed, the same in every process.

    Args:
        *parts: Integers of any size and sign.

    Returns:
        A seed in [0, 2**128).

    Example:
        >>> derive_seed(1, 23) == derive_seed(1, 23)
        True
        >>> derive_seed(1, 23) == derive_seed(12, 3)
        False
    """
    text = ",".join(str(int(part)) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def sample_tokens(
    logits_BV: torch.Tensor, params_B: Sequence[SamplingParams], uniforms_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row by inverting its cumulative distribution.

    Args:
        logits_BV: Raw logits, shape (B, V).
        params_B: Sampling parameters, one a row.
        uniforms_B: Uniform numbers in [0, 1), float64, shape (B,); unused by greedy rows.

    Returns:
        Token ids, int64 (B,), and their log-probabilities, float64 (B,). A greedy row reports the
        log-probability under the untempered distribution.

    Raises:
        ValueError: If the logits hold NaN.

    Example:
        >>> logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
        >>> params = [SamplingParams(max_tokens=1, top_k=2)]
        >>> [int(sample_tokens(logits, params, torch.tensor([u]).double())[0]) for u in (0.0, 0.6, 0.7, 0.999)]
        [0, 0, 1, 1]
    """
    log_probs_BV = _log_probs(logits_BV.double(), params_B)
    cumulative_BV = log_probs_BV.exp().cumsum(dim=-1)
    total_B = cumulative_BV[:, -1]
    if torch.isnan(total_B).any():
        raise ValueError(
            "the model's logits contain NaN; check the weights that were loaded or last synchronised"
        )
    # Strictly below the total, or rounding could select a token of probability zero at the end.
    threshold_B = torch.minimum(uniforms_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    tokens_B = torch.searchsorted(cumulative_BV, threshold_B[:, None], right=True)[:, 0]
    greedy_B = torch.tensor([params.greedy for params in params_B])
    if greedy_B.any():
        tokens_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), tokens_B)
    return tokens_B, log_probs_BV.gather(1, tokens_B[:, None])[:, 0]


def _log_probs(logits_BV: torch.Tensor, params_B: Sequence[SamplingParams]) -> torch.Tensor:
    """Log-probabilities after temperature, top-k and top-p; of greedy rows as the model has them."""
    kinds_B = [(params.temperature, params.top_k, params.top_p) for params in params_B]
    warped_BV = torch.empty_like(logits_BV)
    for kind in set(kinds_B):
        rows_B = torch.tensor([kind == other for other in kinds_B])
        warped_BV[rows_B] = _warped(logits_BV[rows_B], *kind)
    return warped_BV.log_softmax(dim=-1)


def _warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    if temperature == 0:
        return logits
    logits = TemperatureLogitsWarper(float(temperature))(None, logits)
    if top_k > 0:
        logits = TopKLogitsWarper(top_k)(None, logits)
    return TopPLogitsWarper(top_p)(None, logits) if top_p < 1 else logits


@torch.inference_mode()
def generate(model: PreTrainedModel, requests_R: Sequence[GenerationRequest]) -> list[Completion]:
    """Generate a completion for each request, all in one batch with a key-value cache.

    Equal prompts share one prefill. Rows leave the batch as soon as they stop.

    Args:
        model: A causal language model in evaluation mode.
        requests_R: What to generate; may be empty.

    Returns:
        One completion a request, in order.

    Raises:
        ValueError: If the model returns NaN.
    """
    if not requests_R:
        return []
    decoder = _Decoder(model, requests_R)
    while decoder.step():
        pass
    return decoder.completions_R


class _Decoder:
    """The state of one batch: cache, attention mask, and the rows still generating."""

    def __init__(self, model: PreTrainedModel, requests_R: Sequence[GenerationRequest]) -> None:
        self.model = model
        self.params_R = [request.params for request in requests_R]
        self.completions_R = [Completion([], []) for _ in requests_R]
        self.uniforms_RT = _uniforms(requests_R)
        self.active_B = torch.arange(len(requests_R))
        self.length = 0  # tokens that every active row has
        self._prefill(requests_R)

    def _prefill(self, requests_R: Sequence[GenerationRequest]) -> None:
        row_of = {prompt: row for row, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests_R))}
        longest = max(map(len, row_of))
        ids_UL = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in row_of])
        mask_UL = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in row_of])
        self.cache = DynamicCache(config=self.model.config)
        logits_UV = self._forward(ids_UL, mask_UL, (mask_UL.cumsum(dim=-1) - 1).clamp(min=0))
        rows_R = torch.tensor([row_of[request.prompt_ids] for request in requests_R])
        self.cache.batch_select_indices(rows_R)
        self.mask_BL, self.logits_BV = mask_UL[rows_R], logits_UV[rows_R]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def step(self) -> bool:
        """Draw one token for every active row; False once none is left."""
        rows_B = self.active_B.tolist()
        params_B = [self.params_R[row] for row in rows_B]
        uniforms_B = self.uniforms_RT[self.active_B, self.length]
        tokens_B, log_probs_B = sample_tokens(self.logits_BV, params_B, uniforms_B)
        self.length += 1
        drawn_B = zip(rows_B, params_B, tokens_B.tolist(), log_probs_B.tolist(), strict=True)
        keep = torch.tensor([self._append(*drawn) for drawn in drawn_B]).nonzero()[:, 0]
        if not len(keep):
            return False
        if len(keep) < len(rows_B):
            self.cache.batch_select_indices(keep)
            self.mask_BL, tokens_B = self.mask_BL[keep], tokens_B[keep]
            self.active_B = self.active_B[keep]
        positions_B1 = self.mask_BL.sum(dim=-1, keepdim=True)
        self.mask_BL = torch.cat([self.mask_BL, torch.ones_like(positions_B1)], dim=-1)
        self.logits_BV = self._forward(tokens_B[:, None], self.mask_BL, positions_B1)
        return True

    def _append(self, row: int, params: SamplingParams, token: int, log_prob: float) -> bool:
        """Add a token to a completion; False if it is the last."""
        self.completions_R[row].token_ids.append(token)
        self.completions_R[row].log_probs.append(log_prob)
        return token not in params.stop_token_ids and self.length < params.max_tokens


def _uniforms(requests_R: Sequence[GenerationRequest]) -> torch.Tensor:
    """Uniform numbers, float64 (R, T): row r holds the first T draws of its own seed's stream."""
    longest = max(request.params.max_tokens for request in requests_R)
    uniforms_RT = np.zeros((len(requests_R), longest))
    for row, request in enumerate(requests_R):
        if not request.params.greedy:
            stream = np.random.Generator(np.random.Philox(key=request.seed))
            uniforms_RT[row, : request.params.max_tokens] = stream.random(request.params.max_tokens)
    return torch.from_numpy(uniforms_RT)
