"""Measuring speed: races between solvers, strategies and trainers, as ratios with their spread.

`race` lets contenders take turns, `solvers`, `allocator` and `hosts` say who runs against whom, and `results` writes
what it came to. `hosts` is imported on its own: it needs torch and trl.

Example:
    >>> parts = measure(Effort(sizes=(8, 512), tables=(100,), rounds=1, seconds=0.0))
    >>> [part.title for part in parts]
    ['Solvers', 'Strategies', "The allocator's calls", 'Histories', 'A training step']
"""

from __future__ import annotations

import itertools

from coba_rl.bench.allocator import measure_calls, measure_strategies, measure_tables, measure_training_step
from coba_rl.bench.race import QUICK, Effort, Part, Progress
from coba_rl.bench.results import as_dict, write_parts
from coba_rl.bench.solvers import measure_solvers

__all__ = ["QUICK", "Effort", "Part", "as_dict", "measure", "write_parts"]


def measure(effort: Effort, progress: Progress = lambda *_: None) -> list[Part]:
    """Everything that one process and NumPy can tell, and where torch is installed the solver's share of a training step.

    Args:
        effort: How long to measure; 512 must be among its sizes.
        progress: Called with the measurements made, and with how many there are.
    """
    made, total = itertools.count(), 3 * len(effort.sizes) + len(effort.tables) + 1

    def advance() -> None:
        progress(next(made), total)

    advance()
    parts = [
        measure_part(effort, advance)
        for measure_part in (measure_solvers, measure_strategies, measure_calls, measure_tables)
    ]
    parts.append(measure_training_step(parts[0]))
    advance()
    return parts
