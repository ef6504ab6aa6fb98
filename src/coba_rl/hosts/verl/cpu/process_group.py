"""One collective backend for a job whose only device is the CPU."""

from __future__ import annotations

import sys
from typing import Any

TIMEOUT_SECONDS = 600
"""A collective that waits longer has lost a rank."""


def use_gloo() -> None:
    """Make verl's workers start their process group on gloo alone.

    verl joins a CPU backend with the device's, and torch refuses `cpu:gloo,cpu:gloo` because it names one
    device twice. verl has no setting for it, so the function that starts the group gets a default backend.
    """
    from verl.utils import distributed

    start = distributed.initialize_global_process_group_ray
    if start.__module__ == __name__:
        return

    def start_on_gloo(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return start(timeout_second=timeout_second or TIMEOUT_SECONDS, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = start_on_gloo
    workers = sys.modules.get("verl.workers.engine_workers")
    if workers is not None:  # Imported earlier, it holds the original under its own name.
        workers.initialize_global_process_group_ray = start_on_gloo
