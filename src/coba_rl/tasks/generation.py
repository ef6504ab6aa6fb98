"""What everyone who asks a causal language model for answers needs: token ids of prompts, and evaluation mode."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from coba_rl.tasks.base import Prompt


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt. Chat messages go through the chat template; without one, their texts are joined."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if getattr(tokenizer, "chat_template", None):
        # The template writes the special tokens itself.
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer("\n\n".join(message["content"] for message in prompt) + "\n\n")["input_ids"])


@contextmanager
def evaluation_mode(model: Any) -> Generator[None]:
    """The model evaluates inside, and is in the mode it was in afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
