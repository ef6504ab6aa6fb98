"""Threads that wait for work leave the processor to others, and the user has the last word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A few short parallel regions with pauses between them, in which only a thread that spins costs anything.
CODE = """
import os, time
from coba_rl.cli import main
main(["--version"])
import torch
torch.set_num_threads(2)
numbers = torch.ones(200_000)
numbers.add_(1)
start = time.process_time()
for _ in range(15):
    numbers.add_(1)
    time.sleep(0.02)
print(os.environ["OMP_WAIT_POLICY"], time.process_time() - start)
"""


def policy_and_cost(policy: str | None) -> tuple[str, float]:
    """The wait policy that holds, and the processor time of `CODE`."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    if policy:
        environment["OMP_WAIT_POLICY"] = policy
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    name, seconds = done.stdout.split()[-2:]
    return name, float(seconds)


@pytest.mark.trl
def test_idle_threads_sleep_unless_the_user_wants_them_to_spin() -> None:
    ours, cost = policy_and_cost(None)
    theirs, cost_of_spinning = policy_and_cost("active")
    assert (ours, theirs) == ("passive", "active")
    assert cost_of_spinning > 2 * cost or os.cpu_count() == 1  # on one core nothing ever spins for long
