"""The command line: `coba-rl --help`. Heavy libraries are imported by the command that needs them."""

from coba_rl.cli.app import main

__all__ = ["main"]
