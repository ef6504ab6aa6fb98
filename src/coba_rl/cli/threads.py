"""How the threads of numerical libraries wait for work."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Let idle OpenMP threads sleep instead of spin, unless `OMP_WAIT_POLICY` says otherwise.

    A small policy has many short parallel regions. Beside another process on the same cores, threads that spin at
    the end of each region keep the one that still works from running. Read when torch is loaded: call this first.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
