"""What the terminal is spared."""

from __future__ import annotations

import warnings


def be_quiet() -> None:
    """Leave the terminal to our own progress and messages, not to those of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|torch|accelerate)\.")
