"""The table of prompts: against a dictionary, how much memory a prompt takes, and what finding one costs."""

from __future__ import annotations

import copy
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.allocation import prompt_table
from coba_rl.allocation.estimators import ESTIMATORS, Visits, make_estimator
from coba_rl.allocation.prompt_table import Column, PromptTable, prompt_keys

IDS = st.integers(-3, 40) | st.integers(-(10**30), 10**30) | st.sampled_from(["", "1", "a", "ß", "\ud800"])


@given(st.lists(st.tuples(st.lists(IDS, max_size=90), st.booleans()), max_size=6))
def test_it_is_a_dictionary(batches: list[tuple[list[Any], bool]]) -> None:
    table, rows = PromptTable({"value": Column(0.5)}), {}
    for ids, create in batches:
        if create:
            for prompt_id in ids:
                rows.setdefault((type(prompt_id), prompt_id), len(rows))
        expected = [rows.get((type(prompt_id), prompt_id), -1) for prompt_id in ids]
        assert table.rows(ids, create=create).tolist() == expected
        assert len(table) == len(table["value"]) == len(rows)
        table["value"][:] = np.arange(len(rows))
    restored = table.restored(copy.deepcopy(table.arrays()))
    ids = [prompt_id for _, prompt_id in rows]
    assert restored.rows(ids).tolist() == restored["value"].tolist() == list(range(len(rows)))
    new = restored.rows(["never seen"], create=True)
    assert restored["value"][new].tolist() == [0.5]


def test_numbers_and_texts_of_them_differ() -> None:
    assert len(set(prompt_keys([1, "1", -1, "-1", 2**70, str(2**70)]).tolist())) == 6


@given(st.lists(st.integers(0, 400), min_size=1, max_size=400), st.sampled_from([1, 64, 1 << 40]))
def test_hashes_that_want_the_same_slot_find_others(ids: list[int], apart: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            prompt_table, "prompt_keys", lambda ids: np.array(ids, dtype=np.uint64) * np.uint64(apart)
        )
        table, rows = PromptTable({}), {i: row for row, i in enumerate(dict.fromkeys(ids))}
        table.rows(ids[: len(ids) // 2], create=True)
        assert table.rows(ids, create=True).tolist() == [rows[i] for i in ids]
        assert table.rows([401, 402]).tolist() == [-1, -1]
        again = table.restored(table.state_dict())
        assert again.rows(ids).tolist() == [rows[i] for i in ids]


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_a_prompt_takes_at_most_64_bytes(name: str) -> None:
    estimator = make_estimator(name, **({"visits": 2} if name == "window" else {}))  # 2: the most that fit
    batches = [list(range(first, first + 1000)) for first in range(0, 100_000, 1000)]
    worst = 0.0
    tracemalloc.start()
    empty, _ = tracemalloc.get_traced_memory()
    for i, ids in enumerate(batches, start=1):
        estimator.update(Visits(ids, np.full(1000, 1.0), np.full(1000, 2.0)))
        if i > 10:  # of fewer prompts the allocator's own few kilobytes are a part
            worst = max(worst, (tracemalloc.get_traced_memory()[0] - empty) / (1000 * i))
    tracemalloc.stop()
    assert worst <= 64
    assert worst == pytest.approx(estimator.table.nbytes / 100_000, rel=0.5)


def random_table(num_prompts: int) -> PromptTable:
    keys = np.random.default_rng(0).integers(0, 2**64, num_prompts, dtype=np.uint64)
    return PromptTable({"value": Column(0.0)}).restored(
        {"keys": keys, "columns": {"value": np.zeros(num_prompts)}}
    )


def test_finding_prompts_costs_the_same_in_a_small_table_and_in_a_large_one() -> None:
    tables = {num_prompts: random_table(num_prompts) for num_prompts in (1000, 1_000_000)}
    ids = [f"prompt {i}" for i in range(512)]
    seconds = dict.fromkeys(tables, np.inf)
    for table in tables.values():
        table.rows(ids, create=True)
    for _ in range(50):
        for num_prompts, table in tables.items():
            start = time.perf_counter()
            table.rows(ids)
            seconds[num_prompts] = min(seconds[num_prompts], time.perf_counter() - start)
    assert seconds[1_000_000] < 3 * seconds[1000]


def test_probing_is_short_when_the_index_is_as_full_as_it_gets() -> None:
    table = random_table(3 * (1 << 18) // 4)
    assert len(table) / len(table._slots) == 0.75
    probes = 0

    class Counting(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            nonlocal probes
            probes += np.size(index)
            return np.asarray(super().__getitem__(index))

    table._slots = table._slots.view(Counting)
    table.rows(range(10_000))
    assert probes < 5 * 10_000
