"""What identifies a row of training data."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset

from coba_rl.errors import ConfigError
from coba_rl.hosts.prompt_ids import dataset_ids, prompt_id
from coba_rl.tasks.base import content_id


def image(value: int) -> np.ndarray:
    return np.full((2, 2), value, dtype=np.uint8)


def test_content_is_the_id_of_the_tasks():
    chat = [{"role": "user", "content": "hi"}]
    assert prompt_id({"prompt": "hi", "answer": 1}, "prompt_id") == content_id("hi")
    assert prompt_id({"prompt": chat}, "prompt_id") == content_id(chat)


def test_the_same_question_about_two_pictures_is_two_prompts():
    rows = [{"prompt": "What is this?", "image": image(value)} for value in (0, 1, 0)]
    ids = [prompt_id(row, "prompt_id") for row in rows]
    assert ids[0] == ids[2] != ids[1]
    several = [{"prompt": "What is this?", "images": [image(0), image(value)]} for value in (0, 1)]
    assert len({prompt_id(row, "prompt_id") for row in several}) == 2


def test_rows_of_an_environment_are_told_apart_by_all_columns():
    rows = [{"prompt": "Play.", "seed": seed} for seed in (1, 2)]
    assert len({prompt_id(row, "prompt_id") for row in rows}) == 1
    assert len({prompt_id(row, "prompt_id", whole_row=True) for row in rows}) == 2
    assert prompt_id({"environment": "chess"}, "prompt_id") != prompt_id({"environment": "go"}, "prompt_id")


@pytest.mark.parametrize("given", [None, 1.5, True, ["a"]])
def test_an_id_that_is_none(given):
    with pytest.raises(ConfigError, match=r"Column 'key' holds .* expected a prompt id"):
        prompt_id({"prompt": "hi", "key": given}, "key")


def test_one_added_column_of_pictures_or_seeds_re_keys_only_the_rows_that_have_one():
    plain = {"prompt": [{"role": "user", "content": "hi"}]}
    wider = {**plain, "image": None, "images": None, "seed": None}
    for whole_row in (False, True):
        assert prompt_id(wider, "prompt_id", whole_row=whole_row) == prompt_id(
            plain, "prompt_id", whole_row=whole_row
        )


@pytest.mark.parametrize("given", [np.int64(7), np.uint8(7), 7])
def test_whole_numbers_of_numpy_are_ids(given):
    found = prompt_id({"prompt": "hi", "key": given}, "key")
    assert (type(found), found) == (int, 7)


def test_ids_of_a_data_set():
    data = Dataset.from_dict({"prompt": ["a", "b", "a"], "number": [3, 4, 5]})
    assert dataset_ids(data, "number") == [3, 4, 5]
    assert dataset_ids(data, "prompt_id") == [content_id(text) for text in "aba"]
    assert dataset_ids(data, "prompt_id", whole_row=True) is None
    assert dataset_ids(data.to_iterable_dataset(), "number") is None
    assert dataset_ids(data.rename_column("number", "image"), "prompt_id") is None
