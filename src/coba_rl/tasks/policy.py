"""The tiny policies of the embedded tasks: ordinary Qwen2 checkpoints, and exact pass rates.

One character is one token: the symbols of the task, and the special tokens `<pad>` and `<eos>`. Array names end in their
axes: `_M` problems, `_B` problems of one batch, `_L` token positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coba_rl.errors import ConfigError
from coba_rl.tasks.base import Problem
from coba_rl.tasks.embedded import EmbeddedTask, make_embedded, special_ids
from coba_rl.tasks.generation import evaluation_mode, prompt_ids
from coba_rl.tasks.prefix_scan import PrefixScan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Chat frameworks hand prompts over as messages; joining their contents keeps them the prompts the policy knows.
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def policy_path(regime: str, task: str = "prefix-scan") -> Path:
    """Folder of a shipped policy, loadable with `AutoModelForCausalLM` and `AutoTokenizer`.

    Args:
        regime: One of the task's `regimes`.
        task: Name of an embedded task.

    Raises:
        ConfigError: Unknown regime.
        OptionError: Unknown task, or one without a policy.

    Example:
        >>> (policy_path("hard") / "config.json").is_file()
        True
    """
    name = make_embedded(task, regime=regime).name
    return Path(str(files("coba_rl") / "policies" / name / regime))


def build_tokenizer(task: type[EmbeddedTask] = PrefixScan) -> PreTrainedTokenizerBase:
    """Byte-level BPE tokenizer without merges whose vocabulary is the task's characters.

    A character outside the vocabulary is dropped.

    Args:
        task: Whose prompts and answers it reads.

    Returns:
        Tokenizer that pads on the left, as generation needs.

    Example:
        >>> tokenizer = build_tokenizer()
        >>> tokenizer("3+8=").input_ids
        [3, 10, 8, 16]
    """
    from transformers import Qwen2Tokenizer

    pad_id, eos_id = special_ids(task.symbols)
    vocabulary = {symbol: index for index, symbol in enumerate(task.symbols)} | {
        "<pad>": pad_id,
        "<eos>": eos_id,
    }
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token=None,  # ty: ignore[invalid-argument-type]  # None is accepted and means: drop unknown characters
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=64,
        chat_template=_CHAT_TEMPLATE,
    )


def build_model(seed: int = 0, task: type[EmbeddedTask] = PrefixScan) -> PreTrainedModel:
    """Untrained Qwen2 model of about 0.3 million parameters for `build_tokenizer`'s vocabulary.

    The global random state of torch is left as it was.

    Args:
        seed: Seed of the initial weights.
        task: Whose symbols are the vocabulary.

    Returns:
        `Qwen2ForCausalLM` in float32, whose `generate` samples at temperature 1 unless told otherwise.

    Example:
        >>> model = build_model(seed=0)
        >>> model.config.vocab_size == len(build_tokenizer())
        True
    """
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    pad_id, eos_id = special_ids(task.symbols)
    config = Qwen2Config(
        vocab_size=eos_id + 1,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        # Sequences are at most 27 tokens: a short base gives every rotary frequency something to tell apart.
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        # The default of 0.02 is made for wide models.
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    # Explicit values, because library defaults such as top_k=50 differ between frameworks.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=task.max_completion_length,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    return model


def exact_pass_rates(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    *,
    batch_size: int = 128,
) -> np.ndarray:
    """Exact pass rates of a policy on problems with one right completion, at temperature 1.

    p_i = Π_t π(a_t | prompt, a_<t) over the tokens of the answer and the end-of-sequence token, in one teacher-forced
    pass: the mean success of infinitely many rollouts.

    Args:
        model: Causal language model, on any device, in any mode; left as it was.
        tokenizer: Its tokenizer, with an end-of-sequence token.
        problems: M problems whose verifier accepts `answer` followed by end-of-sequence, and nothing else.
        batch_size: Problems in one forward pass.

    Returns:
        float64 (M,), each in [0, 1].

    Raises:
        ConfigError: `batch_size` is not positive.

    Example:
        >>> from coba_rl.tasks.prefix_scan import PrefixScan
        >>> problems = PrefixScan(num_train=8).train_problems()
        >>> exact_pass_rates(build_model(), build_tokenizer(), problems).shape
        (8,)
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size!r}, expected at least 1.")
    if not problems:
        return np.zeros(0)
    prompts = [prompt_ids(tokenizer, problem.prompt) for problem in problems]
    answers = [
        [*ids, tokenizer.eos_token_id]
        for ids in tokenizer([problem.answer for problem in problems], add_special_tokens=False).input_ids
    ]
    logprob_M = np.zeros(len(problems))
    by_length = sorted(
        range(len(problems)), key=lambda i: len(prompts[i]) + len(answers[i])
    )  # little padding
    with evaluation_mode(model):
        for start in range(0, len(problems), batch_size):
            rows = by_length[start : start + batch_size]
            logprob_M[rows] = _answer_logprobs(model, [prompts[i] for i in rows], [answers[i] for i in rows])
    return np.exp(logprob_M)


def _answer_logprobs(
    model: PreTrainedModel, prompts: list[list[int]], answers: list[list[int]]
) -> np.ndarray:
    """Log-probability of each answer after its prompt, float64 (B,)."""
    import torch

    length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    # Padding on the right of a causal model changes nothing on its left, whatever the padding token.
    ids_BL = torch.zeros(len(prompts), length, dtype=torch.long)
    is_answer_BL = torch.zeros(len(prompts), length, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        stop = len(prompt) + len(answer)
        ids_BL[row, :stop] = torch.tensor(prompt + answer)
        is_answer_BL[row, len(prompt) : stop] = True
    with torch.no_grad():
        ids = ids_BL.to(model.device)
        logits = model(ids, attention_mask=torch.ones_like(ids)).logits
    logprob_BL = logits[:, :-1].double().log_softmax(-1).cpu().gather(-1, ids_BL[:, 1:, None])[..., 0]
    return torch.where(is_answer_BL[:, 1:], logprob_BL, 0.0).sum(-1).numpy()
