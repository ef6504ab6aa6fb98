"""What a task is: problems to train on, problems held out, and a verifier."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

Prompt = str | list[dict[str, Any]]
"""Plain text, or a list of chat messages with `role` and `content`."""


def content_id(prompt: Any) -> str:
    """Identify a prompt by what it says, so that re-ordering a data set changes nothing.

    Args:
        prompt: Text, or chat messages (any JSON-able value).

    Returns:
        32 hexadecimal digits (128 bits of BLAKE2b over canonical JSON).

    Example:
        >>> content_id("1+1=") == content_id("1+1=")
        True
        >>> content_id([{"role": "user", "content": "hi"}]) == content_id([{"content": "hi", "role": "user"}])
        True
    """
    canonical = json.dumps(prompt, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt and the answer its verifier expects."""

    prompt_id: str
    """Stable across runs, file orders and machines."""
    prompt: Prompt
    answer: str
    """Ground truth, as the verifier of the task reads it."""
    data_source: str = ""
    """Where the problem comes from, e.g. `math_dapo` or `aime24`."""


class Task(ABC):
    """Problems with a verifier. Subclasses are frozen dataclasses whose fields are their options."""

    name: ClassVar[str]
    max_prompt_length: ClassVar[int]
    """Tokens."""
    max_completion_length: ClassVar[int]
    """Tokens, end-of-sequence included."""

    @abstractmethod
    def train_problems(self) -> list[Problem]:
        """Problems to train on, in a fixed order."""

    @abstractmethod
    def heldout_problems(self) -> list[Problem]:
        """Problems never trained on, in a fixed order; may be empty."""

    @abstractmethod
    def score(self, completion: str, answer: str) -> float | None:
        """1.0 for a right completion, 0.0 for a wrong one, None when it cannot be judged."""
