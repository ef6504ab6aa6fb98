"""What a study is: arms × settings × seeds of lab runs, described in a TOML file."""

from __future__ import annotations

from collections.abc import Sequence
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


Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
Seeds = Annotated[list[int], Field(min_length=1)]
Cell = tuple[str, str]
"""A setting and an arm."""


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    setting: str
    arm: str
    config: LabConfig
    phase: Literal["tuning", "test"] = "test"
    """Whether the run chooses the learning rate of its arm, or is what arms are compared by."""
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


class Tune(BaseModel):
    """How the learning rate of each arm in each setting is chosen: the best on seeds of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    learning_rate: list[Rate] = Field(min_length=1)
    """The grid."""
    within: tuple[Rate, Rate] | None = None
    """Lowest and highest learning rate to try: while the best lies on the edge of the grid, the next one, half or twice
    as high, is tried too. Without it the grid stays as it is."""
    seeds: Seeds
    """Of the tuning runs; none is a seed of the study."""
    by: Literal["area over tokens", "at equal tokens"] = "area over tokens"
    """Of which measure the mean over the tuning seeds is to be highest."""

    def beyond(self, best: float, rates: Sequence[float]) -> float | None:
        """The learning rate to try next: beyond the edge that the best of those tried lies on, if any.

        Example:
            >>> tune = Tune(learning_rate=[1e-4, 2e-4], within=(1e-4, 8e-4), seeds=[100])
            >>> tune.beyond(2e-4, [1e-4, 2e-4]), tune.beyond(1e-4, [1e-4, 2e-4])
            (0.0004, None)
        """
        low, high = self.within or (best, best)
        if best == max(rates) and 2.0 * best <= high:
            return 2.0 * best
        return best / 2.0 if best == min(rates) and best / 2.0 >= low else None


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
    seeds: Seeds
    """Of the runs: every arm gets the same."""
    tune: Tune | None = None
    """Gives every arm its own learning rate in every setting; without it, all have the one of their `LabConfig`."""
    targets: list[Share] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    """Held-out accuracies; arms are compared by the tokens that they need to reach them."""
    base: dict[str, Any] = {}
    """Fields of `LabConfig` common to all runs."""
    settings: Overrides
    """Name → fields of `LabConfig`: the situations the arms are compared in."""
    arms: Overrides
    """Name → fields of `LabConfig`: what is compared. They win over the setting's and the base's. With
    `tokens_of = "ARM"` each run of the arm is as long, in generated tokens, as that arm's run of the same seed."""

    @property
    def cells(self) -> list[Cell]:
        """Every setting with every arm."""
        return [(setting, arm) for setting in self.settings for arm in self.arms]

    def runs(self) -> list[StudyRun]:
        """The runs that are known before any is made: all of them, or with `tune` those of its grid."""
        seeds, rates = (self.tune.seeds, self.tune.learning_rate) if self.tune else (self.seeds, [None])
        return [self.run(*cell, seed, rate) for cell in self.cells for rate in rates for seed in seeds]

    @property
    def num_runs(self) -> int:
        """How many runs it takes, unless the grid of `tune` has to grow."""
        return len(self.runs()) + (len(self.cells) * len(self.seeds) if self.tune else 0)

    def run(self, setting: str, arm: str, seed: int, learning_rate: float | None = None) -> StudyRun:
        """One of the runs.

        Args:
            setting, arm: Which.
            seed: One of the study's or, for a tuning run, of `tune`.
            learning_rate: In place of the configuration's.
        """
        own: dict[str, Any] = {**self.base, **self.settings[setting], **self.arms[arm], "seed": seed}
        paired = own.pop(TOKENS_OF, None)
        tokens_of = None if paired is None else self.run(setting, paired, seed)
        if learning_rate is not None:
            own["learning_rate"] = learning_rate
        phase = "tuning" if self.tune and seed in self.tune.seeds else "test"
        return StudyRun(setting, arm, validated(LabConfig, own), phase, tokens_of)


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
    seeds = [*study.seeds, *(study.tune.seeds if study.tune else [])]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"Study {name!r}: seeds are {seeds}, those of tuning included; expected each once.")
    for arm in study.baselines:
        if arm not in study.arms:
            raise ConfigError(
                f"Study {name!r}: baseline {arm!r} is not an arm. {suggestion(arm, study.arms)}"
            )
    _check_tokens_of(study, name)
    if study.tune:
        _check_tune(study, name)
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


def _check_tune(study: Study, name: str) -> None:
    """Raise `ConfigError` unless `[tune]` alone says what the learning rates are, and tokens of no arm hang on another's."""
    assert study.tune is not None
    for table in (study.base, *study.settings.values(), *study.arms.values()):
        for key in {"learning_rate", TOKENS_OF} & set(table):
            raise ConfigError(
                f"Study {name!r}: {key} = {table[key]!r} in a study with [tune], which gives each arm its learning "
                "rate. Leave it out; `tokens` ends all runs alike."
            )
    rates, within = study.tune.learning_rate, study.tune.within
    if len(set(rates)) < len(rates):
        raise ConfigError(f"Study {name!r}: tune.learning_rate is {rates}, expected each once.")
    if within and not within[0] <= min(rates) <= max(rates) <= within[1]:
        raise ConfigError(
            f"Study {name!r}: tune.within is {within}, expected the lowest and the highest learning rate to try, with "
            f"the grid {rates} between them."
        )
