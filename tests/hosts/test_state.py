"""The state's file: exact, whole or not there, and refused when it is damaged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from coba_rl import BudgetAllocator, StateError
from coba_rl.hosts.state import STATE_FILE, read_state, write_state

ARRAYS = nps.arrays(np.float64, st.integers(0, 5)) | nps.arrays(np.uint64, st.integers(0, 5))


def used(seed: int = 0, num_prompts: int = 20) -> BudgetAllocator:
    allocator = BudgetAllocator("coba", bounds=(2, 9))
    rng = np.random.default_rng(seed)
    for _ in range(3):
        ids = [f"p{i}" if i % 2 else int(i) for i in rng.permutation(num_prompts)[:9]]
        rollouts = [ids[i] for i in allocator.allocate(ids, 40).repeat_index]
        allocator.observe(rollouts, rng.random(40))
    return allocator


def save(folder: Path, allocator: BudgetAllocator) -> None:
    write_state(folder, {"allocator": allocator.state_dict(arrays=True)})


@given(outer=st.lists(ARRAYS, max_size=3), inner=st.lists(ARRAYS, max_size=2))
def test_arrays_come_back_bit_for_bit(
    outer: list[np.ndarray], inner: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("state")
    state = {
        "allocator": {f"a{i}": array for i, array in enumerate(outer)} | {"text": "ß", "list": [1, None]},
        "more": {"deep": {f"b{i}": array for i, array in enumerate(inner)}},
    }
    write_state(folder, state)
    back = read_state(folder)
    assert back is not None
    assert (back["allocator"]["text"], back["allocator"]["list"]) == ("ß", [1, None])
    for i, array in enumerate(outer):
        assert back["allocator"][f"a{i}"].dtype == array.dtype
        assert back["allocator"][f"a{i}"].tobytes() == array.tobytes()
    for i, array in enumerate(inner):
        assert back["more"]["deep"][f"b{i}"].tobytes() == array.tobytes()


def test_an_allocator_goes_on_from_the_file(tmp_path: Path) -> None:
    saved, resumed = used(), BudgetAllocator("coba", bounds=(2, 9))
    save(tmp_path, saved)
    resumed.load_state_dict(read_state(tmp_path)["allocator"])
    assert resumed.state_dict() == saved.state_dict()
    for allocator in (saved, resumed):
        allocator.observe(["p1", "new", 3], [1.0, 0.0, 1.0])
    assert resumed.state_dict() == saved.state_dict()


def test_no_file_is_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


SPOILT = {
    "empty": lambda raw: b"",
    "cut off": lambda raw: raw[:-5],
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "a bit flipped": lambda raw: (
        raw[: len(raw) // 3] + bytes([raw[len(raw) // 3] ^ 1]) + raw[len(raw) // 3 + 1 :]
    ),
    "text": lambda raw: b'{"version": 2}',
    "a pickle": lambda raw: pickle.dumps({"version": 2}),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_file_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    save(tmp_path, used())
    file = tmp_path / STATE_FILE
    file.write_bytes(SPOILT[kind](file.read_bytes()))
    with pytest.raises(StateError, match=STATE_FILE) as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)


PARTS = {
    "no text": {"a0": np.zeros(2)},
    "text that is no JSON": {"state": np.frombuffer(b"[", np.uint8)},
    "brackets deeper than the stack": {"state": np.frombuffer(b"[" * 100_000, np.uint8)},
    "no state": {"state": np.frombuffer(b"[]", np.uint8)},
    **{
        f"an array that is {what}": {
            "state": np.frombuffer(b'{"version": 2, "allocator": {"x": {"array": %s}}}' % name, np.uint8),
            "a0": array,
        }
        for what, name, array in (
            ("missing", b'"a1"', np.zeros(2)),
            ("named by a number", b"7", np.zeros(2)),
            ("a table", b'"a0"', np.zeros((2, 2))),
            ("text", b'"a0"', np.array(["a"])),
        )
    },
}


@pytest.mark.parametrize("kind", PARTS)
def test_an_archive_of_something_else_is_refused(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / STATE_FILE, **PARTS[kind])
    with pytest.raises(StateError, match=STATE_FILE):
        read_state(tmp_path)


def test_a_state_is_one_file_and_the_same_state_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for seed in (1, 2, 1):
        save(tmp_path, used(seed=seed))
        written.append((tmp_path / STATE_FILE).read_bytes())
        assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
    assert written[0] == written[2] != written[1]


@pytest.mark.parametrize("killed_in", ["write_array", "dumps"])
def test_a_kill_amid_a_save_leaves_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    save(tmp_path, used(seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(np.lib.format if killed_in == "write_array" else json, killed_in, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, used(seed=2))
    resumed = BudgetAllocator("coba", bounds=(2, 9))
    resumed.load_state_dict((read_state(tmp_path) or {})["allocator"])
    assert resumed.state_dict() == used(seed=1).state_dict()
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path: Path) -> None:
    write_state(tmp_path, {"allocator": {"step": 1}})
    for state in ({"step": object()}, {"step": 2, "rate": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            write_state(tmp_path, {"allocator": {"array": np.zeros(3), **state}})
    assert read_state(tmp_path) == {"version": 2, "allocator": {"step": 1}}
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
