"""Completions for an evaluation: several a prompt, sampled from a seed, judged by the verifier of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coba_rl.errors import ConfigError
from coba_rl.tasks.generation import evaluation_mode, prompt_ids

if TYPE_CHECKING:
    from coba_rl.tasks.base import Problem, Task


def sample_completions(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    *,
    num_samples: int = 16,
    temperature: float = 1.0,
    top_p: float = 0.9,
    max_new_tokens: int = 4096,
    batch_size: int = 32,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[str]]:
    """Sample completions with the `generate` of transformers.

    The same model, problems, settings and seed give the same completions; another batch size gives others. The random
    state of the caller and the model's mode are left as they were.

    Args:
        model: A causal language model of transformers, on the device to use.
        tokenizer: Its tokenizer. Chat messages go through its chat template; without one, their texts are joined.
        problems: P problems.
        num_samples: Completions of each, K ≥ 1.
        temperature: ≥ 0; 0 takes the likeliest token every time.
        top_p: Probability mass to sample from, in (0, 1]. No other filter is applied, whatever the model ships with.
        max_new_tokens: Longest completion in tokens, ≥ 1.
        batch_size: Completions generated at once, ≥ 1.
        seed: Of the sampling.
        progress: Called with the numbers of completions done and wanted after every batch.

    Returns:
        P lists of K texts, without special tokens.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> sample_completions(None, None, [])
        []
    """
    positive = {"num_samples": num_samples, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"{name}={value!r}: expected at least 1.")
    if temperature < 0 or not 0 < top_p <= 1:
        raise ConfigError(
            f"temperature={temperature!r}, top_p={top_p!r}: expected temperature ≥ 0 and 0 < top_p ≤ 1."
        )
    if not problems:
        return []
    prompts = [prompt_ids(tokenizer, problem.prompt) for problem in problems]
    rows = [prompt for prompt in prompts for _ in range(num_samples)]
    config = _generation_config(model, tokenizer, temperature, top_p, max_new_tokens)
    texts: list[str] = []
    with evaluation_mode(model):
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            texts += _generate(model, tokenizer, batch, config, seed=(seed, start))
            if progress is not None:
                progress(len(texts), len(rows))
    return [texts[start : start + num_samples] for start in range(0, len(texts), num_samples)]


def score_completions(
    task: Task, problems: Sequence[Problem], completions: Sequence[Sequence[str]]
) -> npt.NDArray[np.float64]:
    """Judge completions with the verifier of a task.

    Args:
        task: Its `score` judges.
        problems: P problems.
        completions: Their completions, problem by problem; a problem with fewer than the most is filled up with NaN.

    Returns:
        Successes, shape (P, K); NaN where the verifier could not judge.
    """
    successes_PK = np.full((len(problems), max(map(len, completions), default=0)), np.nan)
    for row, problem, texts in zip(successes_PK, problems, completions, strict=True):
        scores = (task.score(text, problem.answer) for text in texts)
        row[: len(texts)] = [np.nan if score is None else score for score in scores]
    return successes_PK


def _generation_config(
    model: Any, tokenizer: Any, temperature: float, top_p: float, max_new_tokens: int
) -> Any:
    from transformers import GenerationConfig

    end = model.generation_config.eos_token_id
    end = tokenizer.eos_token_id if end is None else end
    ends = [] if end is None else [end] if isinstance(end, int) else list(end)
    pad = tokenizer.pad_token_id
    is_sampled = temperature > 0
    return GenerationConfig(
        do_sample=is_sampled,
        # Said outright, because what is left open is filled in from the settings that the model ships with.
        temperature=temperature if is_sampled else 1.0,
        top_p=top_p if is_sampled else 1.0,
        top_k=0 if is_sampled else 50,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=pad if pad is not None else (ends[0] if ends else 0),
    )


def _generate(
    model: Any, tokenizer: Any, prompts: list[list[int]], config: Any, seed: tuple[int, int]
) -> list[str]:
    import torch

    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = [[config.pad_token_id] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * pad + [1] * len(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
    device = model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # One seed a batch: what a batch samples does not depend on the batches before it.
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0]))
        output = model.generate(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
        )
    return [_decode(tokenizer, row, config.eos_token_id or []) for row in output[:, width:].tolist()]


def _decode(tokenizer: Any, ids: list[int], ends: list[int]) -> str:
    """Text up to the first end-of-sequence token; the padding after it may not be a special token."""
    length = next((position for position, token in enumerate(ids) if token in ends), len(ids))
    return tokenizer.decode(ids[:length], skip_special_tokens=True)
