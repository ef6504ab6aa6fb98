"""The verl host's options and prompt ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coba_rl.allocation import BudgetAllocator
from coba_rl.allocation.strategies import STRATEGIES
from coba_rl.errors import ConfigError, InfeasibleBudgetError, OptionError, UnknownStrategyError
from coba_rl.hosts.verl.options import CobaOptions
from coba_rl.hosts.verl.prompts import BY_CONTENT, BY_INDEX, PromptIds

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

TEXT = st.text("/%2Fab", max_size=6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_and_each_of_its_options_can_be_set(strategy: str) -> None:
    default = BudgetAllocator(strategy).strategy.options()
    given = {key: value for key, value in default.items() if value is not None}
    options = CobaOptions.from_config({"strategy": strategy, "min_budget": 3, "max_budget": 9, **given})
    allocator = options.allocator.build()
    assert (allocator.strategy.name, allocator.bounds) == (strategy, (3, 9))
    assert allocator.strategy.options() == default


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ({"kapa": 15}, OptionError, r"algorithm\.coba\.kapa=15.*'kappa'"),
        ({"success_keys": "acc"}, OptionError, "'success_key'"),
        ({"strategy": "knapsak"}, UnknownStrategyError, "'knapsack'"),
        ({"success_key": 3}, OptionError, "success_key=3"),
        ({"mode": "weight"}, OptionError, "mode='weight'"),
        ({"success_threshold": "high"}, OptionError, "success_threshold='high'"),
        ({"min_budget": 9, "max_budget": 3}, OptionError, "bounds"),
    ],
)
def test_a_wrong_option_is_an_error(section: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CobaOptions.from_config(section).allocator.build()


def test_a_job_that_cannot_run_is_refused_at_the_start() -> None:
    options = CobaOptions.from_config({"min_budget": 6})
    with pytest.raises(InfeasibleBudgetError):
        options.check(options.allocator.build(), 8, 5, "grpo")
    options = CobaOptions.from_config({"pilot": 6})
    with pytest.raises(InfeasibleBudgetError, match="pilot of 6"):
        options.check(options.allocator.build(), 8, 5, "grpo")
    options = CobaOptions.from_config({"min_budget": 1})
    with pytest.raises(ConfigError, match="min_budget=1"):
        options.check(options.allocator.build(), 8, 5, "grpo")
    options.check(options.allocator.build(), 8, 5, "gae")
    options = CobaOptions.from_config({"min_budget": 1, "mode": "weights"})
    options.check(options.allocator.build(), 8, 5, "grpo")


def dataset(rows: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(dataframe=datasets.Dataset.from_list(rows))


def test_ids_are_source_and_index_when_they_tell_all_rows_apart() -> None:
    rows = [{"data_source": s, "extra_info": {"index": i}} for s in ("a", "b") for i in range(3)]
    ids = PromptIds.choose(dataset(rows))
    assert ids.scheme == BY_INDEX
    assert "data_source and extra_info.index" in ids.message
    assert ids.of(["a", "b"], [{"index": 0}, {"index": 0}], [None, None]) == ["a/0", "b/0"]


@given(st.lists(st.tuples(TEXT, TEXT), unique=True, min_size=2))
@example([("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc")])
def test_ids_of_different_rows_differ_whatever_they_are_made_of(pairs: list[tuple[str, str]]) -> None:
    sources = [source for source, _ in pairs]
    ids = PromptIds(BY_INDEX).of(sources, [{"index": index} for _, index in pairs], [None] * len(pairs))
    assert len(set(ids)) == len(pairs)


@pytest.mark.parametrize(
    "rows",
    [
        [{"data_source": "a", "extra_info": {"index": i}} for i in (0, 1, 0)],
        [{"data_source": "a", "extra_info": {"split": "train"}} for _ in range(2)],
        [{"data_source": "a", "extra_info": {"index": i}} for i in (0, None)],
        [{"data_source": "a"}],
    ],
    ids=["repeated", "no index", "index missing in a row", "no extra_info"],
)
def test_ids_are_hashes_of_the_content_otherwise(rows: list[dict[str, Any]]) -> None:
    ids = PromptIds.choose(dataset(rows))
    assert ids.scheme == BY_CONTENT
    assert "hash of their content" in ids.message
    a, b, again = (ids.of(["s"], [{}], [[{"role": "user", "content": text}]])[0] for text in "aba")
    assert a == again != b


def test_a_dataset_without_a_table_is_identified_by_content() -> None:
    assert PromptIds.choose(object()).scheme == BY_CONTENT


def test_pictures_are_identified_by_their_bytes() -> None:
    def prompt(value: int) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image", "image": np.full((2, 2), value)}]}]

    ids = PromptIds(BY_CONTENT)
    one, same, other = ids.of(["s"] * 3, [{}] * 3, [prompt(1), prompt(1), prompt(2)])
    assert one == same != other


@pytest.mark.parametrize("scheme", [BY_INDEX, BY_CONTENT])
def test_ids_of_the_data_are_those_of_its_batches(scheme: str) -> None:
    rows = [
        {"data_source": "s", "extra_info": {"index": i}, "prompt": [{"role": "user", "content": text}]}
        for i, text in enumerate("abc")
    ]
    ids = PromptIds(scheme)
    batch = [[row[name] for row in rows] for name in ("data_source", "extra_info", "prompt")]
    assert ids.of_dataset(dataset(rows)) == ids.of(*batch)


def test_ids_of_data_with_pictures_are_not_read_ahead() -> None:
    rows = [{"prompt": [{"role": "user", "content": "<image>"}], "images": [[1]]}]
    assert PromptIds(BY_CONTENT).of_dataset(dataset(rows)) is None
    assert PromptIds(BY_CONTENT).of_dataset(object()) is None
