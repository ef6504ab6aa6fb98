"""Strategies, the allocator's calls, its memory of millions of prompts, and the solver's share of a training step."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from coba_rl.allocation import STRATEGIES, BudgetAllocator
from coba_rl.allocation.estimators import Visits
from coba_rl.allocation.prompt_table import PromptId
from coba_rl.bench.race import HIGH, LOW, MEAN_BUDGET, Effort, Part, Row, pass_rates, race, row_of
from coba_rl.hosts.state import read_state, write_state


def used_allocator(strategy: str, ids: list[PromptId]) -> BudgetAllocator:
    """An allocator with two visits of each prompt behind it."""
    allocator = BudgetAllocator(strategy, bounds=(LOW, HIGH))
    allocator.begin(100)
    rng, attempts = np.random.default_rng([0, 1]), np.full(len(ids), float(MEAN_BUDGET))
    for _ in range(2):
        passed = rng.binomial(MEAN_BUDGET, pass_rates(len(ids))).astype(float)
        allocator.strategy.observe(Visits(ids, passed, attempts))
    return allocator


def prompt_ids(num_prompts: int) -> list[PromptId]:
    """As many ids."""
    return [f"prompt-{i}" for i in range(num_prompts)]


def measure_strategies(effort: Effort, advance: Callable[[], None]) -> Part:
    """`allocate` with every strategy."""
    part = Part(
        "strategies",
        "Strategies",
        "`allocate` of a batch of M prompts with a history. Ratio: time to that of `coba`.",
    )
    for size in effort.sizes:
        # The released allocator tabulates every gain: gigabytes for a million prompts.
        names = [name for name in STRATEGIES if name != "coba-release" or size <= 32_768]
        ids = prompt_ids(size)
        calls = {name: partial(used_allocator(name, ids).allocate, ids, MEAN_BUDGET * size) for name in names}
        part.rows += race(calls, "coba", size, effort)
        advance()
    return part


def measure_calls(effort: Effort, advance: Callable[[], None]) -> Part:
    """The calls of a training step, and the state as JSON."""
    part = Part(
        "calls",
        "The allocator's calls",
        f"`coba`, a batch of M prompts with {MEAN_BUDGET}·M rollouts. Ratio: time to that of `allocate`.",
    )
    for size in effort.sizes:
        ids = prompt_ids(size)
        allocator = used_allocator("coba", ids)
        allocation = allocator.allocate(ids, MEAN_BUDGET * size)
        rollouts = [ids[i] for i in allocation.repeat_index]
        scores = np.random.default_rng(1).integers(0, 2, len(rollouts)).astype(float)
        calls: dict[str, Callable[[], object]] = {
            "allocate": partial(allocator.allocate, ids, MEAN_BUDGET * size),
            "observe": partial(allocator.observe, rollouts, scores),
            "state_dict as JSON": lambda a=allocator: json.dumps(a.state_dict()),
        }
        part.rows += race(calls, "allocate", size, effort)
        advance()
    return part


# --- Memory of millions of prompts ---


def measure_tables(effort: Effort, advance: Callable[[], None]) -> Part:
    """What a step and a checkpoint cost when so many prompts have a history."""
    part = Part(
        "histories",
        "Histories",
        "`coba` with N prompts in its memory. `observe`: 512 prompts, 8,192 rollouts, ratio to that of the smallest "
        "memory. Saving and loading are in seconds by the clock, waiting for the disk included.",
    )
    rollouts = [prompt_id for prompt_id in prompt_ids(512) for _ in range(MEAN_BUDGET)]
    scores = np.random.default_rng(1).integers(0, 2, len(rollouts)).astype(float)
    allocators = {size: allocator_that_knows(size) for size in effort.tables}
    contenders: dict[str, Callable[[], object]] = {
        f"{size}": partial(allocator.observe, rollouts, scores) for size, allocator in allocators.items()
    }
    rows = race(contenders, f"{effort.tables[0]}", 0, effort)
    part.rows += [Row("observe", int(row.name), row.seconds, row.ratio, row.low, row.high) for row in rows]
    for size, allocator in allocators.items():
        part.facts[f"N = {size:,}: bytes a prompt"] = allocator.strategy.prompts.nbytes / size
        part.facts |= {f"N = {size:,}: {what}": value for what, value in save_and_load(allocator).items()}
        advance()
    return part


def allocator_that_knows(num_prompts: int) -> BudgetAllocator:
    """An allocator with a history of so many prompts, which stand under random hashes."""
    allocator = BudgetAllocator("coba", bounds=(LOW, HIGH))
    prompts, rng = allocator.strategy.prompts, np.random.default_rng(0)
    state = {
        "keys": rng.integers(0, 2**64, num_prompts, dtype=np.uint64),
        "columns": {name: rng.random(num_prompts) for name in prompts.arrays()["columns"]},
    }
    allocator.strategy.prompts = prompts.restored(state)
    return allocator


def save_and_load(allocator: BudgetAllocator) -> dict[str, float]:
    """Seconds by the clock, and the size of the files."""
    other = BudgetAllocator("coba", bounds=(LOW, HIGH))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        write_state(folder, {"allocator": allocator.state_dict(arrays=True)})
        saved = time.perf_counter()
        other.load_state_dict((read_state(folder) or {})["allocator"])
        loaded = time.perf_counter()
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {"saving, s": saved - start, "loading, s": loaded - saved, "files, MB": size / 1e6}


# --- A training step ---


def measure_training_step(solvers: Part, num_steps: int = 6) -> Part:
    """A step of the embedded task beside the solver's share of it; no rows without torch."""
    part = Part(
        "training",
        "A training step",
        "One step of the embedded policy with 64 prompts and 1,024 rollouts, on one core. Ratio: time to that of "
        "`fast` on a batch of 512 prompts and 8,192 rollouts.",
    )
    try:
        import scipy  # noqa: F401  (a lab run measures with it)
        from transformers.utils import logging

        from coba_rl.lab.run import LabConfig, LabRun
    except ImportError:
        return part
    logging.disable_progress_bar()
    ends: list[float] = []
    LabRun(
        LabConfig(steps=num_steps, evaluate_every=num_steps), lambda *_: ends.append(time.process_time())
    ).run()
    steps = np.diff(ends).tolist()
    solver = next(row.seconds for row in solvers.rows if row.name == "fast" and row.prompts == 512)
    part.rows = [row_of("embedded training step", 64, steps, [solver] * len(steps))]
    part.facts["share of `fast` in the step, %"] = 100.0 / part.rows[0].ratio
    return part
