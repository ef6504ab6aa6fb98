"""`coba-rl train` in a process that kills itself with SIGKILL at a chosen moment.

Usage: dying_train.py FOLDER KIND NUMBER SECONDS ARGUMENTS…

file        at the NUMBER-th time that a file of the run folder is opened for writing, renamed or removed
generation  SECONDS into the NUMBER-th generation of rollouts
time        after SECONDS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from coba_rl.cli import main

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_file_change(folder: str, number: int) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if not (writes or event in CHANGES) or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        # Removing a tree names its files relative to an open folder.
        if str(path).startswith(folder) or (event in CHANGES and not os.path.isabs(path)):
            seen += 1
            if seen == number:
                die()

    sys.addaudithook(hook)


def die_in_generation(number: int, seconds: float) -> None:
    from coba_rl.hosts.trl import CobaGRPOTrainer

    generate = CobaGRPOTrainer._generate_single_turn
    seen = 0

    def generate_and_die(*arguments: Any, **keywords: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == number:
            threading.Timer(seconds, die).start()
        return generate(*arguments, **keywords)

    CobaGRPOTrainer._generate_single_turn = generate_and_die


if __name__ == "__main__":
    folder, kind, number, seconds, *arguments = sys.argv[1:]
    if kind == "file":
        die_at_file_change(folder, int(number))
    elif kind == "generation":
        die_in_generation(int(number), float(seconds))
    else:
        threading.Timer(float(seconds), die).start()
    sys.exit(main(["train", "--output-dir", folder, *arguments]))
