"""What a study is: arms × settings × seeds of lab runs, described in a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from coba_rl.config_file import read_toml, shipped_names, validated
from coba_rl.errors import ConfigError, suggestion
from coba_rl.lab.config import LabConfig
from coba_rl.lab.keys import run_digest

_SHIPPED = Path(__file__).parent.parent / "configs" / "studies"

TOKENS_OF = "tokens_of"
"""Key of an arm whose runs are as long as those of another."""

Overrides = Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    setting: str
    arm: str
    config: LabConfig
    tokens_of: StudyRun | None = None
    """The run that says how long this one is: it ends when it has generated as many tokens."""

    @cached_property
    def key(self) -> str:
        """File name of the run: the same for runs that give the same figures, in whichever study they appear.

        It depends on the configuration with all defaults filled in, and on the code of the run (see `lab.keys`).
        """
        digest = run_digest(self.config, self.tokens_of.key if self.tokens_of else "")
        name = self.config.strategy.rpartition(":")[2]
        return f"{self.config.regime}-{name}-seed{self.config.seed}-{digest}"


class Study(BaseModel):
    """Every arm runs in every setting with every seed; arms are compared with the baselines, seed by seed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    title: str
    """Heading of the report."""
    question: str
    """What the study answers, in a sentence."""
    show: list[Literal["transitions", "mechanism", "estimates"]] = []
    """What the report shows besides learning curves, cost and comparisons."""
    baselines: list[str] = Field(min_length=1)
    """Arms that every other arm is compared with."""
    seeds: list[int] = Field(min_length=1)
    """Of the runs: every arm gets the same."""
    base: dict[str, Any] = {}
    """Fields of `LabConfig` common to all runs."""
    settings: Overrides
    """Name → fields of `LabConfig`: the situations the arms are compared in."""
    arms: Overrides
    """Name → fields of `LabConfig`: what is compared. They win over the setting's and the base's. With
    `tokens_of = "ARM"` each run of the arm is as long, in generated tokens, as that arm's run of the same seed."""

    def runs(self) -> list[StudyRun]:
        """Every run, seed by seed, so that a study that is cut short has whole pairs."""
        return [
            self.run(setting, arm, seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in self.arms
        ]

    def run(self, setting: str, arm: str, seed: int) -> StudyRun:
        """One of the runs."""
        own: dict[str, Any] = {**self.base, **self.settings[setting], **self.arms[arm], "seed": seed}
        paired = own.pop(TOKENS_OF, None)
        tokens_of = None if paired is None else self.run(setting, paired, seed)
        return StudyRun(setting, arm, validated(LabConfig, own), tokens_of)


def shipped_studies() -> list[str]:
    """Names of the studies that come with the package.

    Example:
        >>> "main" in shipped_studies()
        True
    """
    return shipped_names(_SHIPPED)


def load_study(source: str | Path, **changes: Any) -> Study:
    """Read a study from a TOML file, or a shipped one by its name.

    Args:
        source: Path of a file, or one of `shipped_studies()`.
        changes: Keys that replace those of the file, e.g. `seeds=[7, 8]`; those of `base` are merged.

    Raises:
        ConfigError: No such study, unreadable TOML, unknown keys, or values that no run accepts.

    Example:
        >>> study = load_study("main", seeds=[7])
        >>> len(study.runs()) == len(study.settings) * len(study.arms)
        True
    """
    values = read_toml(source, _SHIPPED)
    base = {**values.get("base", {}), **changes.pop("base", {})}
    return check_study({**values, **changes, "base": base}, str(source))


def check_study(values: dict[str, Any], name: str) -> Study:
    """Make a study of the tables of its file.

    Raises:
        ConfigError: As `load_study`.
    """
    try:
        study = validated(Study, values)
    except ConfigError as error:
        raise ConfigError(f"Study {name!r}: {error}") from None
    if len(set(study.seeds)) < len(study.seeds):
        raise ConfigError(f"Study {name!r}: seeds are {study.seeds}, expected each once.")
    for arm in study.baselines:
        if arm not in study.arms:
            raise ConfigError(
                f"Study {name!r}: baseline {arm!r} is not an arm. {suggestion(arm, study.arms)}"
            )
    _check_tokens_of(study, name)
    for setting in study.settings:
        for arm in study.arms:
            where = f"Study {name!r}, arm {arm!r} in setting {setting!r}"
            try:
                study.run(setting, arm, 0).config.make_allocator()
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
    return study


def _check_tokens_of(study: Study, name: str) -> None:
    """Raise `ConfigError` unless every `tokens_of` is in an arm and names an arm that has none itself."""
    for table in (study.base, *study.settings.values()):
        if TOKENS_OF in table:
            raise ConfigError(f"Study {name!r}: {TOKENS_OF} = {table[TOKENS_OF]!r} belongs into an arm.")
    known = [arm for arm, values in study.arms.items() if TOKENS_OF not in values]
    for arm, values in study.arms.items():
        paired = values.get(TOKENS_OF)
        if TOKENS_OF in values and paired not in known:
            raise ConfigError(
                f"Study {name!r}, arm {arm!r}: {TOKENS_OF} is {paired!r}, expected an arm of a fixed number of steps. "
                f"{suggestion(str(paired), known)}"
            )
