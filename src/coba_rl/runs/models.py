"""Models and tokenizers as runs load them: looked at before their weights are paid for, and without chatter."""

from __future__ import annotations

import warnings
from pathlib import Path

from coba_rl.errors import ConfigError
from coba_rl.packages import need

_WEIGHTS = (".safetensors", ".bin")


def be_quiet() -> None:
    """Leave the terminal to our own progress and messages, not to those of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|torch|accelerate)\.")


def check_model(source: str) -> None:
    """Refuse a local folder that lacks a model's weights, or is an adapter that nothing can load.

    Args:
        source: Folder or hub name; what is on the hub is not looked at.

    Raises:
        ConfigError: No weights, or peft is not installed.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    if (folder / "adapter_config.json").is_file():
        need(["peft"], f"the adapter {source!r}")
    if not any(file.suffix in _WEIGHTS for file in folder.iterdir()):
        raise ConfigError(
            f"model {source!r} cannot be loaded: the folder has no weights, expected *.safetensors or *.bin."
        )
