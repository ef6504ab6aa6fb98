"""`coba-rl env`: what is installed and what it allows."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from coba_rl.cli.tables import print_json, print_table
from coba_rl.packages import missing

_PACKAGES = (
    "coba-rl",
    "numpy",
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "datasets",
    "verl",
    "ray",
    "vllm",
    "math-verify",
    "matplotlib",
)
_NEEDS = {
    "allocate": ["numpy"],
    "train (TRL)": ["torch", "transformers", "trl", "datasets"],
    "train (verl)": ["torch", "verl", "ray"],
    "math answers": ["math_verify"],
    "report": ["matplotlib", "jinja2"],
}


def env(*, json: bool = False) -> None:
    """Show what is installed and what can therefore be run; put this into bug reports.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    facts = describe()
    if json:
        print_json(facts)
        return
    print_table("Packages", ["package", "version"], [[name, v] for name, v in facts["packages"].items()])
    print_table("Machine", ["", ""], [[name, str(value)] for name, value in facts["machine"].items()])
    print_table("Can run", ["", ""], [[name, value] for name, value in facts["can_run"].items()])


def describe() -> dict[str, Any]:
    """Packages, machine and what can be run, JSON-able."""
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "gpus": _gpus(),
        },
        "can_run": {name: _can_run(needs) for name, needs in _NEEDS.items()},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _can_run(modules: list[str]) -> str:
    absent = missing(modules)
    return "yes" if not absent else f"no: {', '.join(absent)} missing"


def _gpus() -> str:
    if missing(["torch"]):
        return "unknown (torch is not installed)"
    import torch

    count = torch.cuda.device_count()
    return ", ".join(torch.cuda.get_device_name(i) for i in range(count)) or "none"
