"""One rule says which prompt is which: `content_id`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from coba_rl.tasks.base import content_id

CHAT = [{"role": "user", "content": "hi"}]


def same(value: Any) -> dict[str, Any]:
    return {"prompt": value}


EQUAL: dict[str, tuple[Any, Any]] = {
    "a key without a value": (CHAT, [{**CHAT[0], "name": None}]),
    "a key without a value, deep down": (
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "hi", "image": None}]}],
    ),
    "a column without values": ({"seed": 1}, {"seed": 1, "level": None}),
    "the order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "lists and tuples": (CHAT, tuple(CHAT)),
    "lists and arrays of objects": (CHAT, np.array(CHAT, dtype=object)),
    "lists and arrays of numbers": ({"board": [1, 2]}, {"board": np.array([1, 2])}),
    "whole numbers of NumPy": ({"seed": 1}, {"seed": np.int64(1)}),
    "numbers of NumPy": ({"level": 0.5}, {"level": np.float32(0.5)}),
    "text of NumPy": ("hi", np.str_("hi")),
}

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "values": (CHAT, [{"role": "user", "content": "ho"}]),
    "a number and its digits": ({"seed": 1}, {"seed": "1"}),
    "no value and an empty one": ({"seed": 1}, {"seed": 1, "level": ""}),
    "missing among others": ([1, None, 2], [1, 2]),
    "pictures": tuple(same(Image.new("L", (2, 2), shade)) for shade in (0, 1)),
    "pictures of the same bytes and another shape": tuple(
        same(Image.new("L", size)) for size in ((2, 8), (4, 4))
    ),
    "arrays of the same bytes and another type": tuple(
        same(np.zeros((2, 2), kind)) for kind in (np.int32, np.float32)
    ),
    "bytes": ({"image": {"bytes": b"\xff\x01"}}, {"image": {"bytes": b"\xff\x02"}}),
    "halves of characters": ("\ud83d", "\ud83e"),
}


@pytest.mark.parametrize("case", EQUAL)
def test_what_says_the_same_is_one_prompt(case: str) -> None:
    first, second = EQUAL[case]
    assert content_id(first) == content_id(second)


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_says_something_else_is_another_prompt(case: str) -> None:
    first, second = DIFFERENT[case]
    assert content_id(first) != content_id(second)


def test_equal_pictures_are_one_wherever_they_lie_in_memory() -> None:
    first, second = ([{"type": "image", "image": Image.new("RGB", (3, 2), "red")}] for _ in range(2))
    assert content_id(first) == content_id(second)
