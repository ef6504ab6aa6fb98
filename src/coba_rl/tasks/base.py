"""What a task is: problems to train on, problems held out, and a verifier."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

Prompt = str | list[dict[str, Any]]
"""Plain text, or a list of chat messages with `role` and `content`."""


def content_id(prompt: Any) -> str:
    """Identify a prompt by what it says, so that re-ordering a data set changes nothing.

    The one rule of all tasks and hosts. A key whose value is None says nothing: columnar files fill such keys in
    as soon as one row of them has the key.

    Args:
        prompt: Text, chat messages, or a whole row: any JSON-able value. NumPy values are those of Python; pictures
            and arrays count by their bytes.

    Returns:
        32 hexadecimal digits (128 bits of BLAKE2b over canonical JSON).

    Example:
        >>> content_id("1+1=") == content_id("1+1=")
        True
        >>> message = {"role": "user", "content": "hi"}
        >>> content_id([message]) == content_id([{"content": "hi", "role": "user", "name": None}])
        True
    """
    canonical = json.dumps(
        _plain(prompt), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str
    )
    return _digest(canonical.encode("utf-8", "surrogatepass"))


def _plain(value: Any) -> Any:
    """JSON-able stand-in; where the `str` of a value is no identity, a digest of its bytes."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (bytes, bytearray)):
        return _digest(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        if array.ndim <= 1:
            plain = array.tolist()
            return _plain(plain) if array.dtype == object else plain
        return [array.dtype.str, array.shape, _digest(array.tobytes())]
    return value


def _digest(data: bytes | bytearray) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


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
