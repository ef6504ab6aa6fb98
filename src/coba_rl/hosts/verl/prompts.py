"""Which prompt a row of verl's training data is, so that its history is found again in the next epoch and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coba_rl.tasks.base import content_id

BY_INDEX = "index"
BY_CONTENT = "content"

_ROWS = 4096  # read at a time


@dataclass(frozen=True)
class PromptIds:
    """How prompts are identified in one training run.

    Example:
        >>> PromptIds(BY_INDEX).of(["gsm8k"], [{"index": 7}], [[{"role": "user", "content": "1+1="}]])
        ['gsm8k/7']
        >>> PromptIds(BY_INDEX).of(["a", "a/b"], [{"index": "b/7"}, {"index": 7}], [None, None])
        ['a/b%2F7', 'a/b/7']
    """

    scheme: str
    """`index`: `data_source/extra_info.index`; `content`: a hash of the prompt."""
    reason: str = ""
    """Why, for the message at the start."""

    @classmethod
    def choose(cls, dataset: Any) -> PromptIds:
        """Use `(data_source, extra_info.index)` if it tells all rows apart, else the content.

        verl takes a missing index for 0, so every prompt of such data would share one history.

        Args:
            dataset: verl's training data; its `dataframe` is read if it has one.
        """
        frame = getattr(dataset, "dataframe", None)
        columns = getattr(frame, "column_names", ())
        if frame is None or "data_source" not in columns or "extra_info" not in columns:
            return cls(BY_CONTENT, "the data has no columns data_source and extra_info to read at the start")
        seen: set[tuple[str, str]] = set()
        for source, index in _sources_and_indices(frame):
            if isinstance(index, bool) or not isinstance(index, (str, int)):
                return cls(BY_CONTENT, f"extra_info.index is {index!r} in a row of {source!r}")
            if (key := (str(source), str(index))) in seen:
                return cls(BY_CONTENT, f"extra_info.index={index!r} occurs more than once in {source!r}")
            seen.add(key)
        return cls(BY_INDEX, f"they tell all {len(seen):,} rows of the data apart")

    @property
    def message(self) -> str:
        """One sentence for the log."""
        how = "data_source and extra_info.index" if self.scheme == BY_INDEX else "a hash of their content"
        return f"coba-rl: prompts are identified by {how} ({self.reason})."

    def of(
        self, sources: Sequence[Any], extra_infos: Sequence[Mapping[str, Any]], prompts: Sequence[Any]
    ) -> list[str]:
        """Identify the prompts of a batch.

        Args:
            sources: (P,) `data_source`.
            extra_infos: (P,) `extra_info`.
            prompts: (P,) chat messages.
        """
        if self.scheme == BY_INDEX:
            return [
                _joined(source, extra["index"]) for source, extra in zip(sources, extra_infos, strict=True)
            ]
        return [content_id(prompt) for prompt in prompts]

    def of_dataset(self, dataset: Any) -> list[str] | None:
        """Identify every row of verl's training data, in order; None where that takes more than a column of text."""
        frame = getattr(dataset, "dataframe", None)
        columns = getattr(frame, "column_names", ())
        if self.scheme == BY_INDEX:
            return [_joined(source, index) for source, index in _sources_and_indices(frame)]
        column = getattr(dataset, "prompt_key", "prompt")
        pictures = {getattr(dataset, f"{kind}_key", f"{kind}s") for kind in ("image", "video", "audio")}
        if column not in columns or pictures & {*columns}:
            return None
        tables = frame.select_columns([column]).with_format("arrow").iter(_ROWS)
        return [content_id(prompt) for table in tables for prompt in table.column(column).to_pylist()]


def _joined(source: Any, index: Any) -> str:
    """One text for both; the index is escaped, so that the last slash is always the one between them."""
    escaped = str(index).replace("%", "%25").replace("/", "%2F")
    return f"{source}/{escaped}"


def _sources_and_indices(frame: Any) -> Iterator[tuple[Any, Any]]:
    """Column by column: the data can have millions of rows, and a row can hold pictures."""
    for table in frame.select_columns(["data_source", "extra_info"]).with_format("arrow").iter(_ROWS):
        sources = table.column("data_source").to_pylist()
        extras = table.column("extra_info").combine_chunks()
        names = [extras.type.field(i).name for i in range(extras.type.num_fields)]
        indices = extras.field("index").to_pylist() if "index" in names else [None] * len(sources)
        yield from zip(sources, indices, strict=True)
