"""How strategies are found by name, and how wrong names, options and values are answered."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from coba_rl import STRATEGIES, BudgetAllocator, OptionError, Strategy, UnknownStrategyError
from coba_rl.allocation.solvers import even_split, heap
from coba_rl.allocation.strategies import make_strategy, strategy_class
from coba_rl.allocation.value import Gains


def test_names_and_classes_agree() -> None:
    for name, cls in STRATEGIES.items():
        assert cls.name == name
        assert strategy_class(name) is cls


@pytest.mark.parametrize(
    ("given_name", "near"),
    [
        ("cobra", "coba"),
        ("knapsak", "knapsack"),
        ("uniformly", "uniform"),
        ("linear_decay", "linear-decay"),
        ("GVM", None),
        ("", None),
    ],
)
def test_an_unknown_strategy_suggests_the_nearest(given_name: str, near: str | None) -> None:
    with pytest.raises(UnknownStrategyError) as caught:
        BudgetAllocator(given_name)
    message = str(caught.value)
    assert f"Unknown strategy {given_name!r}." in message
    assert (f"Did you mean {near!r}?" in message) == (near is not None)
    assert "Known: coba, coba-paper" in message


@pytest.mark.parametrize(
    ("name", "option", "near"),
    [
        ("coba", "kapa", "kappa"),
        ("coba", "tau_per_rollouts", "tau_per_rollout"),
        ("gvm", "kappa", None),
        ("uniform", "tau", None),
    ],
)
def test_an_option_that_the_strategy_does_not_use_is_an_error(
    name: str, option: str, near: str | None
) -> None:
    with pytest.raises(OptionError) as caught:
        make_strategy(name, **{option: 1.0})
    assert f"Strategy {name!r} has no option {option!r}." in str(caught.value)
    assert near is None or f"Did you mean {near!r}?" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("coba", {"kappa": "11"}, "kappa='11': expected a finite number"),
        ("coba", {"kappa": math.nan}, "kappa=nan: expected a finite number"),
        ("coba", {"kappa": True}, "kappa=True"),
        ("coba-paper", {"kappa": 2.0, "alpha_max": 1.0}, "kappa=2.0: expected more than 2"),
        (
            "coba-paper",
            {"kappa": 5.0, "alpha_max": 5.0},
            "alpha_max=5.0: expected between alpha_min=1.0 and kappa − 1 = 4.0",
        ),
        ("coba-paper", {"alpha_min": 0.5}, "alpha_min=0.5: expected at least 1"),
        ("coba-paper", {"alpha_min": 6.0, "alpha_max": 5.0}, "alpha_max=5.0"),
        ("coba", {"kappa": 2.0}, "kappa=2.0: expected more than 2"),
        ("coba", {"preferred_min": -0.1}, "preferred_min=-0.1: expected a pass rate"),
        ("coba", {"preferred_max": 1.1}, "preferred_max=1.1: expected a pass rate"),
        ("coba-paper", {"alpha_slope": 0.0}, "alpha_slope=0.0"),
        ("coba-paper", {"gamma": 0}, "gamma=0: expected a positive number"),
        ("coba-paper", {"transform_below": 1.0}, "transform_below=1.0"),
        ("coba", {"tau": 0.0}, "tau=0.0: expected a positive number of rollouts"),
        ("coba", {"tau": math.inf}, "tau=inf"),
        ("coba", {"tau_per_rollout": -1.0}, "tau_per_rollout=-1.0"),
        ("coba", {"window": 0}, "window=0: expected at least 1 step"),
        ("coba", {"window": 2.5}, "window=2.5: expected a whole number"),
        ("coba", {"solver": "fats"}, "Unknown solver 'fats'. Did you mean 'fast'"),
        ("coba", {"estimator": "drfit"}, "Unknown estimator 'drfit'. Did you mean 'drift'"),
        ("coba", {"estimator": {"visits": 2}}, "estimator={'visits': 2}: expected a table with a name"),
        (
            "coba",
            {"estimator": {"name": "drift", "decoy": 2}},
            "Estimator 'drift' has no option 'decoy'. Did you mean 'decay'",
        ),
        ("coba", {"estimator": {"name": "drift", "decay": 2}}, "decay=2: expected a share"),
        ("coba", {"estimator": 3}, "estimator=3: expected text or a table or PassRateEstimator"),
        ("coba", {"solver": 3}, "solver=3: expected text or a function"),
        ("coba-release", {"estimator": "drift"}, "estimator='drift': expected 'window'"),
        ("coba-release", {"solver": "heap"}, "the release brings its own heap"),
        (
            "coba-release",
            {"estimator": {"name": "window", "visits": 2}},
            "whose visits are the option window",
        ),
        ("static-exploit", {"beta": 0.5}, "beta=0.5: expected at least 1"),
        ("linear-decay", {"kappa": 10.0}, "kappa=10.0: expected"),
        ("gvm", {"damping": -1.0}, "damping=-1.0: expected at least 0"),
        ("gvm", {"damping_exponent": 0.5}, "damping_exponent=0.5: expected at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_a_wrong_value_says_what_is_expected(name: str, options: dict, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_strategy(name, **options)
    assert message in str(caught.value)


THIRD_PARTY = """
import numpy as np
from dataclasses import dataclass
from coba_rl import Strategy

@dataclass(eq=False, kw_only=True)
class Ramp(Strategy):
    name = "ramp"
    steps: int = 1

    def plan(self, p_P, total, low, high):
        budgets = np.full(len(p_P), low)
        budgets[np.argmax(p_P)] += total - budgets.sum()
        return budgets

not_a_strategy = 3
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "third_party_ramp.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "third_party_ramp", raising=False)
    return "third_party_ramp"


def test_a_strategy_from_a_module_of_ones_own(third_party: str) -> None:
    allocator = BudgetAllocator(f"{third_party}:Ramp", bounds=(2, 20), steps=3)
    assert isinstance(allocator.strategy, Strategy)
    assert allocator.state_dict()["strategy"] == "ramp"
    assert allocator.state_dict()["options"]["steps"] == 3
    allocator.observe(["a", "a", "b", "b"], [1, 0, 1, 1])
    assert allocator.allocate(["a", "b"], total=12).budgets.tolist() == [2, 10]
    with pytest.raises(OptionError, match=re.escape("has no option 'step'. Did you mean 'steps'")):
        BudgetAllocator(f"{third_party}:Ramp", step=3)


@pytest.mark.parametrize("tail", [":Rump", ":not_a_strategy", ":np", ":"])
def test_something_else_in_that_module_is_refused(third_party: str, tail: str) -> None:
    with pytest.raises(UnknownStrategyError, match=f"Strategy '{third_party}{tail}'"):
        BudgetAllocator(third_party + tail)


@pytest.mark.parametrize(
    "name", ["no_such_module_anywhere:Mine", ":Mine", ".relative:Mine", "coba_rl.errors:CobaError"]
)
def test_a_module_that_cannot_be_imported_is_named(name: str) -> None:
    with pytest.raises(UnknownStrategyError, match=f"Strategy '{name}'"):
        BudgetAllocator(name)


TYPED = """
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Optional
from coba_rl.allocation.strategies import Uniform

@dataclass(eq=False, kw_only=True)
class Typed(Uniform):
    name: ClassVar[str] = "typed"
    whole: int = 1
    number: float = 0.5
    text: str = "x"
    switch: bool = False
    maybe: int | None = None
    perhaps: Optional[float] = None
    pair: tuple[float, float] = (0.0, 1.0)
    many: list[int] = (1, 2)
    choice: Literal["a", "b"] = "a"
    either: int | str = 3
    table: dict = field(default_factory=dict)
    call: Callable | None = None
"""


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["resolved", "as text"])
def typed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"third_party_typed_{len(request.param)}"
    (tmp_path / f"{module}.py").write_text(request.param + TYPED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return f"{module}:Typed"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("whole", 1.5, "a whole number"),
        ("whole", True, "a whole number"),
        ("number", "1", "a finite number"),
        ("number", math.inf, "a finite number"),
        ("text", 3, "text"),
        ("switch", "False", "true or false"),
        ("maybe", "7", "a whole number or None"),
        ("perhaps", math.nan, "a finite number or None"),
        ("pair", (1.0,), "(a finite number, a finite number)"),
        ("pair", (1.0, "2"), "(a finite number, a finite number)"),
        ("many", 3, "a list, each a whole number"),
        ("many", [1, 2.5], "a list, each a whole number"),
        ("choice", "c", "'a' or 'b'"),
        ("either", 1.5, "a whole number or text"),
        ("table", "a = 1", "a table"),
        ("call", "print", "a function or None"),
    ],
)
def test_options_are_of_their_types_however_a_module_keeps_annotations(
    typed: str, option: str, value: object, expected: str
) -> None:
    with pytest.raises(OptionError) as caught:
        make_strategy(typed, **{option: value})
    assert str(caught.value) == f"{option}={value!r}: expected {expected}."


def test_values_of_the_right_types_are_taken(typed: str) -> None:
    options = {"whole": 2, "number": 1, "text": "", "switch": True, "maybe": 7, "perhaps": 0.5}
    options |= {"pair": [1, 2.0], "many": [], "choice": "b", "either": "n", "table": {"a": 1}}
    assert options.items() <= make_strategy(typed, **options).options().items()


def _even(gains: Gains, total: int, low: int, high: int) -> np.ndarray:
    return even_split(total, gains.size)


def test_a_solver_of_ones_own() -> None:
    rates = np.array([0.1, 0.5, 0.5])
    for solver, name in (
        (_even, f"{__name__}:_even"),
        (f"{__name__}:_even", f"{__name__}:_even"),
        (heap, "heap"),
    ):
        strategy = make_strategy("coba", solver=solver)
        assert strategy.options()["solver"] == name
        again = make_strategy("coba", **strategy.options())
        budgets = [s.allocate(rates, 24, 2, 20).tolist() for s in (strategy, again)]
        assert budgets[0] == budgets[1]
        assert (budgets[0] == [8, 8, 8]) == (solver is not heap)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ("coba_rl.allocation.solvers:fats", "Solver 'coba_rl.allocation.solvers:fats' cannot be imported"),
        ("coba_rl.allocation.solvers:SOLVERS", "cannot be called"),
    ],
)
def test_a_solver_that_is_none_is_refused(solver: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_strategy("coba", solver=solver)


def test_a_type_that_is_not_known_at_run_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_party_hidden.py").write_text(
        "from __future__ import annotations\n" + TYPED.replace("either: int", "either: Hidden")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionError, match=r"option of Typed cannot be resolved .*'Hidden'.*TYPE_CHECKING"):
        make_strategy("third_party_hidden:Typed")
