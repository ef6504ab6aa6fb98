"""Whether results can be written, asked before the work that makes them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coba_rl.errors import ConfigError


def check_file(path: Path) -> None:
    """Refuse a file that could not be written.

    Args:
        path: `--output`; its folder has to be there.

    Raises:
        ConfigError: It is a folder, or lies in none that can be written.
    """
    if path.is_dir():
        raise ConfigError(f"--output is the folder {str(path)!r}, expected a file in it.")
    if not path.parent.is_dir():
        raise ConfigError(
            f"--output is {str(path)!r}, but there is no folder {str(path.parent)!r}. Make it, or choose another."
        )
    _try_to_write(path.parent, "--output", path)


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be made or written. Nothing is made.

    Args:
        path: `--output-dir`; its parents need not be there.

    Raises:
        ConfigError: It is a file, lies below one, or cannot be written.
    """
    there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists() or p.is_symlink())
    if not there.is_dir():
        raise ConfigError(f"--output-dir is {str(path)!r}, but {str(there)!r} is no folder. Choose another.")
    _try_to_write(there, "--output-dir", path)


def _try_to_write(folder: Path, flag: str, path: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".coba-rl-"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{flag} is {str(path)!r}, which cannot be written: {error.strerror}. Choose another."
        ) from None
