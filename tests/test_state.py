"""The state's two files: exact, whole or not there, and refused when they do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from coba_rl import BudgetAllocator, StateError
from coba_rl.hosts import state as state_module
from coba_rl.hosts.state import PROMPTS_FILES, STATE_FILE, read_state, write_state

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


def test_an_allocator_goes_on_from_the_files(tmp_path: Path) -> None:
    saved, resumed = used(), BudgetAllocator("coba", bounds=(2, 9))
    save(tmp_path, saved)
    assert len((tmp_path / STATE_FILE).read_text()) < 3000  # the prompts are not in it
    resumed.load_state_dict(read_state(tmp_path)["allocator"])
    assert resumed.state_dict() == saved.state_dict()
    for allocator in (saved, resumed):
        allocator.observe(["p1", "new", 3], [1.0, 0.0, 1.0])
    assert resumed.state_dict() == saved.state_dict()


def test_no_file_is_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


SPOILT = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "too long": lambda path: path.write_bytes(path.read_bytes() + b"12345678"),
    "a bit flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_prompts_file_is_named_in_one_line(tmp_path: Path, kind: str) -> None:
    save(tmp_path, used())
    (file,) = tmp_path.glob(PROMPTS_FILES)
    SPOILT[kind](file)
    with pytest.raises(StateError) as caught:
        read_state(tmp_path)
    assert file.name in str(caught.value) or PROMPTS_FILES in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [["<f8"], ["<f8", -1], ["|O", 3], ["nonsense", 3], 7, ["<f8", 10**6]])
def test_a_state_that_misdescribes_its_prompts_is_refused(tmp_path: Path, array: Any) -> None:
    save(tmp_path, used())
    state = json.loads((tmp_path / STATE_FILE).read_text())
    state["allocator"]["prompts"]["keys"] = {"coba_array": array}
    (tmp_path / STATE_FILE).write_text(json.dumps(state))
    with pytest.raises(StateError, match=r"do not belong together|is damaged"):
        read_state(tmp_path)


@pytest.mark.parametrize("arrays", [7, {}, {"bytes": 3}, {"bytes": 3, "crc32": "../x"}, {"crc32": -1}])
def test_a_state_that_names_no_prompts_file_is_refused(tmp_path: Path, arrays: Any) -> None:
    save(tmp_path, used())
    state = json.loads((tmp_path / STATE_FILE).read_text())
    (tmp_path / STATE_FILE).write_text(json.dumps({**state, "arrays": arrays}))
    with pytest.raises(StateError, match=STATE_FILE):
        read_state(tmp_path)


def test_a_save_leaves_one_pair_of_files(tmp_path: Path) -> None:
    for seed in (1, 2):
        save(tmp_path, used(seed=seed))
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("step", ["atomic_file", "write_atomic"])
def test_a_kill_amid_a_save_leaves_the_pair_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    save(tmp_path, used(seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(state_module, step, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, used(seed=2))
    resumed = BudgetAllocator("coba", bounds=(2, 9))
    resumed.load_state_dict((read_state(tmp_path) or {})["allocator"])
    assert resumed.state_dict() == used(seed=1).state_dict()
    save(tmp_path, used(seed=2))
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_saved_leaves_the_old_files(tmp_path: Path) -> None:
    write_state(tmp_path, {"allocator": {"step": 1}})
    for state in ({"step": object()}, {"step": 2, "rate": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            write_state(tmp_path, {"allocator": {"array": np.zeros(3), **state}})
    assert read_state(tmp_path) == {"version": 1, "allocator": {"step": 1}}
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]
