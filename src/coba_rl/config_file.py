"""Configurations in TOML files: shipped ones by their names, mistakes in keys and values explained."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from coba_rl.errors import ConfigError, suggestion

Model = TypeVar("Model", bound=BaseModel)


def shipped_names(folder: Path) -> list[str]:
    """Names of the TOML files in a folder of the package."""
    return sorted(file.stem for file in folder.glob("*.toml"))


def read_toml(source: str | Path, shipped: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Args:
        source: Path of a file, or the name of a shipped one.
        shipped: Folder of the shipped files.

    Raises:
        ConfigError: The file is missing, unreadable or malformed.
    """
    name, known = str(source), shipped_names(shipped)
    path = shipped / f"{name}.toml" if name in known else Path(source)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"Config file {name!r} does not exist. Give a TOML file or the name of a shipped one. "
            f"{suggestion(name, known)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Config file {name!r} cannot be read: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"Config file {name!r} is not valid TOML: {error}.") from None


def validated(model: type[Model], values: dict[str, Any]) -> Model:
    """The model of these values.

    Raises:
        ConfigError: A key is unknown (with a suggestion) or missing, or a value is of a wrong type.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
    *path, last = (str(part) for part in first["loc"])
    where = ".".join([*path, last])
    if first["type"] == "extra_forbidden":
        section: Any = model
        for part in path:
            annotation = section.model_fields[part].annotation
            section = (*get_args(annotation), annotation)[0]  # of `Section | None`, the section
        raise ConfigError(f"Unknown config key {where!r}. {suggestion(last, section.model_fields)}")
    if first["type"] == "missing":
        raise ConfigError(f"Config key {where!r} is missing.")
    raise ConfigError(f"Config key {where!r} is {first['input']!r}: {first['msg'].lower()}.")
