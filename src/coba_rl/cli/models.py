"""Whether a model can be loaded, as far as that shows without its weights."""

from __future__ import annotations

from pathlib import Path

from coba_rl.cli.packages import need
from coba_rl.errors import ConfigError

_WEIGHTS = (".safetensors", ".bin")


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
