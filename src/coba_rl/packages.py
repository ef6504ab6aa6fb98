"""Packages that a command needs and that may not be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from coba_rl.errors import ConfigError

_EXTRAS = {
    "trl": ("torch", "transformers", "trl", "accelerate", "datasets"),
    "math": ("math_verify", "sympy", "pyarrow"),
    "report": ("matplotlib", "jinja2", "scipy"),
    "verl": ("verl", "ray", "transfer_queue", "tensordict", "omegaconf", "psutil"),
}
"""Extra of this package → modules it brings."""


def missing(modules: Iterable[str]) -> list[str]:
    """Those of the modules that are not installed.

    Example:
        >>> missing(["json", "no_such_module"])
        ['no_such_module']
    """
    return [name for name in modules if importlib.util.find_spec(name) is None]


def need(modules: Iterable[str], purpose: str) -> None:
    """Refuse to start what cannot be finished.

    Args:
        modules: Top-level modules, by the names they are imported by.
        purpose: What needs them, for the message.

    Raises:
        ConfigError: One is not installed.

    Example:
        >>> need(["no_such_module"], "report_to='x'")
        Traceback (most recent call last):
            ...
        coba_rl.errors.ConfigError: report_to='x' needs no_such_module, which is not installed: pip install no-such-module
    """
    for module in missing(modules):
        raise ConfigError(f"{purpose} needs {module}, which is not installed: {_install(module)}")


def explain_missing(error: ModuleNotFoundError) -> str:
    """One line about an import that failed."""
    module = (error.name or str(error)).partition(".")[0]
    return f"this needs {module}, which is not installed: {_install(module)}"


def _install(module: str) -> str:
    extra = next((extra for extra, modules in _EXTRAS.items() if module in modules), None)
    return f"pip install 'coba-rl[{extra}]'" if extra else f"pip install {module.replace('_', '-')}"
