"""Which code made a page: version, commit, date."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def made_by(package: Path = PACKAGE) -> str:
    """Version of coba-rl, commit if it runs from a checkout, and today's date (UTC).

    Args:
        package: Folder of the package's code.

    Example:
        >>> made_by().startswith("Made by coba-rl ")
        True
    """
    return f"Made by coba-rl {version('coba-rl')}{_commit(package)} on {datetime.now(UTC):%Y-%m-%d}."


def _commit(package: Path) -> str:
    # Installed packages can lie inside the checkout of something else: only code that git tracks has a commit.
    if not _git(package, "ls-files", "__init__.py"):
        return ""
    # Results written beside the code change nothing that was run.
    changed = " with uncommitted changes" if _git(package, "status", "--porcelain", "--", ".") else ""
    return f" at commit {_git(package, 'rev-parse', '--short', 'HEAD')}{changed}"


def _git(folder: Path, *arguments: str) -> str:
    """What git prints, empty where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
