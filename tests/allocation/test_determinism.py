"""Same ids and same history give the same budgets in any process, whatever its hash seed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from coba_rl import STRATEGIES, BudgetAllocator

SCRIPT = """
import hashlib, json, zlib
from coba_rl import STRATEGIES, BudgetAllocator

def success(*key):  # any number in [0, 1], the same in every process
    return zlib.crc32(repr(key).encode()) / 2**32

found = {}
for name in STRATEGIES:
    allocator = BudgetAllocator(name, bounds=(2, 64))
    allocator.begin(6)
    for step in range(6):
        ids = [f"prompt {(5 * step + 7 * i) % 40}" if i % 3 else (5 * step + 7 * i) % 40 for i in range(24)]
        allocation = allocator.allocate(ids, total=24 * 16 + step)
        rollouts = [ids[i] for i in allocation.repeat_index]
        allocator.observe(rollouts, [success(prompt, n // 3) for n, prompt in enumerate(rollouts)])
    whole = json.dumps([allocation.budgets.tolist(), allocator.metrics(), allocator.state_dict()])
    found[name] = hashlib.sha256(whole.encode()).hexdigest()
print(json.dumps(found))
"""


def run_in_a_new_process(hash_seed: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def test_any_process_and_hash_seed_gives_the_same_budgets_and_states() -> None:
    first, second, third = (run_in_a_new_process(seed) for seed in ("0", "1", "random"))
    assert len(set(first.values())) == len(first)  # the script tells strategies apart
    assert first == second == third


def test_no_strategy_draws_from_the_global_generators() -> None:
    def states() -> str:
        return repr((random.getstate(), np.random.get_state()))

    before = states()
    scope: dict[str, Any] = {"print": str}
    exec(SCRIPT, scope)
    assert states() == before
    assert len(scope["found"]) > 0


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"linear-decay"}))
def test_the_order_in_which_rollouts_arrive_changes_nothing(name: str) -> None:
    ids = [*range(20), *"abcdefgh"]
    rng = np.random.default_rng(0)
    in_order, shuffled = BudgetAllocator(name), BudgetAllocator(name)
    for _ in range(6):
        allocation = in_order.allocate(ids, 28 * 8)
        assert (shuffled.allocate(ids, 28 * 8).budgets == allocation.budgets).all()
        prompts = [ids[i] for i in allocation.repeat_index]
        successes = rng.random(len(prompts)).round(3)
        in_order.observe(prompts, successes)
        order = rng.permutation(len(prompts))
        shuffled.observe([prompts[i] for i in order], successes[order])
    assert shuffled.state_dict() == in_order.state_dict()
