"""Public names, signatures, strategies and options are promises: changing one fails here first."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import fields

import pytest

import coba_rl
import coba_rl.allocation
from coba_rl import STRATEGIES, Allocation, BudgetAllocator, GainStrategy, Strategy
from coba_rl.testing import StrategyConformance

ALLOCATION_MODULES = sorted(
    ["coba_rl", "coba_rl.errors", "coba_rl.testing", "coba_rl.allocation"]
    + [module.name for module in pkgutil.walk_packages(coba_rl.allocation.__path__, "coba_rl.allocation.")]
)


def test_public_names() -> None:
    assert sorted(coba_rl.__all__) == [
        "Allocation",
        "BudgetAllocator",
        "CobaError",
        "ConfigError",
        "DatasetError",
        "GainStrategy",
        "InfeasibleBudgetError",
        "OptionError",
        "STRATEGIES",
        "StateError",
        "Strategy",
        "UnknownStrategyError",
    ]
    assert sorted(coba_rl.allocation.__all__) == [
        "Allocation",
        "BudgetAllocator",
        "GainStrategy",
        "STRATEGIES",
        "Strategy",
    ]


def test_every_public_name_is_there_and_no_other_is_promised() -> None:
    for name in coba_rl.__all__:
        assert getattr(coba_rl, name).__name__ == name if name != "STRATEGIES" else coba_rl.STRATEGIES
    assert dir(coba_rl) == sorted(coba_rl.__all__)
    with pytest.raises(AttributeError, match="module 'coba_rl' has no attribute 'BudgetAlocator'"):
        _ = coba_rl.BudgetAlocator


@pytest.mark.parametrize(
    "error",
    [
        "ConfigError",
        "DatasetError",
        "InfeasibleBudgetError",
        "OptionError",
        "StateError",
        "UnknownStrategyError",
    ],
)
def test_errors_are_value_errors_of_one_family(error: str) -> None:
    assert issubclass(getattr(coba_rl, error), coba_rl.CobaError)
    assert issubclass(getattr(coba_rl, error), ValueError)


def signatures(cls: type) -> dict[str, str]:
    """Parameters of every public method, without annotations."""
    found = {}
    for name, member in inspect.getmembers(cls):
        if callable(member) and (not name.startswith("_") or (name == "__init__" and name in vars(cls))):
            signature = inspect.signature(member)
            bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
            plain = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
            found[name] = str(plain)[1:-1]
    return found


def test_budget_allocator() -> None:
    assert signatures(BudgetAllocator) == {
        "__init__": "self, strategy='coba', *, bounds=(2, 128), success_threshold=None, mode='rollouts', pilot=0, budget_unit='rollouts', **options",
        "allocate": "self, prompt_ids, total=None, pass_rates=None, *, tokens=None",
        "allocate_rest": "self, successes",
        "begin": "self, num_allocations",
        "check_feasible": "self, num_prompts, total",
        "expected_tokens": "self, prompt_ids, pass_rates=None",
        "load_state_dict": "self, state",
        "metrics": "self",
        "observe": "self, prompt_ids, successes, in_pilot=None, *, lengths=None",
        "preview": "self, prompt_ids, total",
        "state_dict": "self, *, arrays=False",
        "success": "self, scores",
        "weigh": "self, prompt_ids, rollout_ids, successes",
    }
    assert set(vars(BudgetAllocator())) >= {"strategy", "bounds", "success_threshold", "mode", "pilot"}


def test_allocation() -> None:
    names = ["prompt_ids", "budgets", "pass_rates", "is_pilot", "remaining"]
    assert [field.name for field in fields(Allocation)] == names
    assert {name: text for name, text in signatures(Allocation).items() if name != "__init__"} == {
        "as_dict": "self"
    }
    properties = {name for name, member in vars(Allocation).items() if isinstance(member, property)}
    assert properties == {"repeat_index", "total"}


def test_strategy_hooks() -> None:
    hooks = {
        "allocate": "self, p_P, total, low, high",
        "allocate_tokens": "self, p_P, cost_P, tokens, low, high",
        "allocate_within": "self, p_P, cost_P, total, low, high",
        "begin": "self, num_allocations",
        "check_feasible": "self, num_prompts, total, low, high",
        "contrast": "self, p_P, mean_budget",
        "interval": "self, prompt_ids, level=0.9",
        "load_state_dict": "self, state",
        "metrics": "self",
        "observe": "self, visits",
        "observe_success_rate": "self, success_rate",
        "options": "self",
        "pass_rates": "self, prompt_ids",
        "pass_rates_given": "self, prompt_ids, visits",
        "plan": "self, p_P, total, low, high",
        "plan_tokens": "self, p_P, cost_P, tokens, low, high, total=None",
        "seen": "self, prompt_ids",
        "spread": "self, p_P, total, low, high",
        "state_dict": "self",
        "validate": "self",
        "value": "self, p_P, mean_budget, batch_P=None",
    }
    assert {name: text for name, text in signatures(Strategy).items() if name != "__init__"} == hooks
    assert {
        name: text for name, text in signatures(GainStrategy).items() if name not in {"__init__", *hooks}
    } == {"gains": "self, p_P, mean_budget"}
    assert "make" in StrategyConformance.__abstractmethods__


def test_strategies_and_their_options() -> None:
    every = ["window", "estimator"]
    beta = [*every, "solver", "tau"]
    coba = [*beta, "kappa", "gamma", "transform_below", "alpha_min", "alpha_max", "alpha_slope"]
    assert {name: [field.name for field in fields(cls)] for name, cls in STRATEGIES.items()} == {
        "coba": [*beta, "kappa", "preferred_min", "preferred_max", "tau_per_rollout"],
        "coba-paper": coba,
        "coba-release": coba,
        "explore-exploit": coba,
        "gvm": [*every, "damping", "damping_exponent"],
        "knapsack": [*every, "solver"],
        "linear-decay": [*beta, "kappa"],
        "static-exploit": [*beta, "alpha", "beta"],
        "static-explore": [*beta, "alpha", "beta"],
        "uniform": every,
        "variance": [*every, "solver"],
    }


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_option_is_documented_where_it_is_defined(name: str) -> None:
    sources = [
        inspect.getsource(cls) for cls in STRATEGIES[name].__mro__ if cls.__module__.startswith("coba_rl")
    ]
    for field in fields(STRATEGIES[name]):
        documented = [
            f"\n    {field.name}: " in source
            and '"""' in source.split(f"\n    {field.name}: ")[1].split("\n")[1]
            for source in sources
        ]
        assert any(documented), f"{name}: option {field.name} has no docstring"


HEAVY = [
    "torch",
    "trl",
    "verl",
    "transformers",
    "datasets",
    "matplotlib",
    "pydantic",
    "rich",
    "cyclopts",
    "pytest",
]


@pytest.mark.parametrize(
    "code",
    [
        "import coba_rl; from coba_rl import BudgetAllocator; BudgetAllocator().allocate(['a'], 4)",
        "import coba_rl.testing",
    ],
)
def test_the_allocator_loads_nothing_heavy(code: str) -> None:
    report = f"{code}; import sys; print(*sorted(set(sys.modules) & set({HEAVY})))"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == []


def test_naming_the_package_does_not_even_load_numpy() -> None:
    report = "import coba_rl, sys; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ALLOCATION_MODULES)
def test_docstring_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_docstring_examples_to_run() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [
        test.name
        for name in ALLOCATION_MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(examples) >= 20
