"""What the terminal can show, and what it is spared."""

from __future__ import annotations

import warnings

from rich.console import Console


def progress_console() -> Console:
    """Standard error, where progress is shown."""
    return Console(stderr=True)


def be_quiet() -> None:
    """Leave the terminal to our own progress and messages, not to those of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|torch|accelerate)\.")
