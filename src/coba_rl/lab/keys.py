"""What a lab run's figures depend on besides its configuration: the code that computes them, as a digest."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from coba_rl.allocation import Strategy
from coba_rl.lab.config import LabConfig

PACKAGE = Path(__file__).parent.parent

SOURCES = (
    "allocation", "option_types.py", "plugins.py", "lab/config.py", "lab/grpo.py", "lab/measures.py", "lab/policy.py", "lab/prefix_tree.py",
    "lab/prefixes.py", "lab/qwen2.py", "lab/result.py", "lab/rounds.py", "lab/run.py",
    "tasks/__init__.py", "tasks/base.py", "tasks/embedded.py", "tasks/generation.py", "tasks/policy.py", "tasks/prefix_scan.py",
    "tasks/string_transform.py", "policies",
)  # fmt: skip
"""Files and folders of the package that a run computes with."""

CHOSEN = ("allocation/strategies", "allocation/estimators")
"""Folders among them of which only the files count that hold the run's strategy, its estimator, and what these are made
of: another rule leaves a run's figures as they are."""

LIBRARIES = ("numpy", "scipy", "torch", "transformers")
"""Libraries whose version may move a run's figures."""


def resolved(config: LabConfig) -> tuple[LabConfig, Strategy]:
    """The configuration with every option of its strategy, defaults included; and that strategy.

    Example:
        >>> resolved(LabConfig(strategy="uniform"))[0].options
        {'window': 1, 'estimator': {'name': 'window', 'visits': 1}}
    """
    strategy = config.make_allocator().strategy
    return config.model_copy(update={"options": strategy.options()}), strategy


def run_digest(config: LabConfig, tokens_of: str = "") -> str:
    """12 hexadecimal digits: the same for runs that give the same figures, another where anything they rest on differs.

    Args:
        config: What is run.
        tokens_of: Key of the run whose tokens end this one; empty for a run of `config.steps` steps.
    """
    whole, strategy = resolved(config)
    foreign = map(_digest_of_module, foreign_modules(strategy))
    parts = [whole.model_dump_json(), tokens_of, code_digest(source_files(strategy)), *foreign]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@cache
def code_digest(files: tuple[Path, ...], package: Path = PACKAGE) -> str:
    """Digest of files, and of the versions of `LIBRARIES`. Computed once a process, as modules are loaded once."""
    digest = hashlib.sha256(str([version(name) for name in LIBRARIES]).encode())
    for file in files:
        digest.update(f"\n{file.relative_to(package).as_posix()}\n".encode())
        digest.update(_digest_of_file(file))
    return digest.hexdigest()


def _digest_of_file(file: Path) -> bytes:
    """Of what a file computes: comments and docstrings of Python leave it as it is."""
    content = file.read_bytes()
    if file.suffix == ".py":
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                node.__dict__["body"] = [statement for statement in body if not _is_text(statement)]
        content = ast.dump(tree).encode()
    return hashlib.sha256(content).digest()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def source_files(strategy: Strategy) -> tuple[Path, ...]:
    """Every file of `SOURCES` that runs of a strategy compute with, in a fixed order."""
    found = [file for source in SOURCES for file in (PACKAGE / source, *(PACKAGE / source).rglob("*"))]
    chosen = _chosen_files(strategy)
    return tuple(
        file
        for file in sorted(found)
        if file.is_file()
        and file.suffix != ".pyc"
        and (file in chosen or file.parent.relative_to(PACKAGE).as_posix() not in CHOSEN)
    )


def _chosen_files(strategy: Strategy) -> set[Path]:
    """Files of the folders `CHOSEN` that a strategy is made of."""
    parts = [strategy, *vars(strategy).values()]
    waiting = {base.__module__ for part in parts for base in type(part).__mro__}
    seen, files = set[str](), set[Path]()
    while waiting:
        seen.add(name := waiting.pop())
        module = sys.modules.get(name)
        file = Path(str(getattr(module, "__file__", "")))
        # The folders' own modules know every rule by its name, and compute nothing.
        if module and str(file.parent).startswith(str(PACKAGE)) and file.name != "__init__.py":
            files |= {file} if file.parent.relative_to(PACKAGE).as_posix() in CHOSEN else set()
            used = {str(getattr(value, "__module__", "")) for value in vars(module).values()}
            waiting |= {name for name in used if name.startswith("coba_rl.allocation.")} - seen
    return files


def foreign_modules(strategy: Strategy) -> list[ModuleType]:
    """Modules outside this package that a strategy, or what it is built of, comes from; sorted by name.

    Modules that these import are followed, installed libraries only where the strategy itself lives in one.
    """
    parts = [strategy, *vars(strategy).values()]
    bases = [base for part in parts for base in type(part).__mro__]
    waiting = list(_modules([*parts, *bases]))
    packages = {module.__name__.partition(".")[0] for module in waiting}
    found: dict[str, ModuleType] = {}
    while waiting:
        module = waiting.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            waiting += [
                used
                for used in _modules(vars(module).values())
                if used.__name__.partition(".")[0] in packages or not _is_installed(used)
            ]
    return [found[name] for name in sorted(found)]


def _modules(values: Iterable[Any]) -> set[ModuleType]:
    """What values are or come from: modules with a source file that belong neither to this package, Python nor NumPy."""
    found = set()
    known = {"coba_rl", "numpy", *sys.stdlib_module_names}
    for value in list(values):
        name = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        module = sys.modules.get(name)
        if module and getattr(module, "__file__", None) and name.partition(".")[0] not in known:
            found.add(module)
    return found


def _is_installed(module: ModuleType) -> bool:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(Path(str(module.__file__)).is_relative_to(folder) for folder in folders)


def _digest_of_module(module: ModuleType) -> str:
    return f"{module.__name__} {_digest_of_file(Path(str(module.__file__))).hex()}"
