"""The method and strategies pages say what the code does: names exist, tables match, examples run."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import coba_rl.allocation
from coba_rl import STRATEGIES, BudgetAllocator, Strategy
from coba_rl.allocation.capability import beta_shape, transform
from coba_rl.allocation.estimators import ESTIMATORS

ROOT = Path(__file__).parents[2]
METHOD = (ROOT / "docs" / "method.md").read_text()
PAGE = (ROOT / "docs" / "strategies.md").read_text()
ABSENT = object()


def section(page: str, title: str) -> str:
    """Text under a heading, up to the next one of the same or a higher level."""
    level = title.index(" ")
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in table if not set(row[0]) <= {"-"} or not row[0]]


def default(cell: str) -> Any:
    return {"unset": None, "–": ABSENT}[cell] if cell in ("unset", "–") else ast.literal_eval(cell)


def documented_options() -> dict[str, dict[str, Any]]:
    shared = {row[0].strip("`"): default(row[1]) for row in rows(section(PAGE, "### Of every strategy"))[1:]}
    return {
        name: {**shared, **own}
        for family in ("### CoBA-RL", "### Fixed preferences", "### Others")
        for name, own in by_column(family).items()
    }


def by_column(title: str) -> dict[str, dict[str, Any]]:
    """Option → default, for each heading of a table between the first and the last."""
    head, *body = rows(section(PAGE, title))
    cells = {
        name.strip("`"): [(row[0].strip("`"), default(row[column])) for row in body]
        for column, name in enumerate(head[1:-1], start=1)
    }
    return {name: {k: v for k, v in found if v is not ABSENT} for name, found in cells.items()}


def test_the_options_of_the_estimators_are_those_in_the_code() -> None:
    assert by_column("### Of the estimators of pass rates") == {
        name: {field.name: field.default for field in fields(cls)} for name, cls in ESTIMATORS.items()
    }


def test_the_option_tables_list_every_field_and_default() -> None:
    in_code = {name: {field.name: field.default for field in fields(cls)} for name, cls in STRATEGIES.items()}
    assert documented_options() == in_code


def test_the_options_of_every_strategy_are_those_of_the_base_class() -> None:
    listed = {row[0].strip("`"): default(row[1]) for row in rows(section(PAGE, "### Of every strategy"))[1:]}
    assert listed == {field.name: field.default for field in fields(Strategy)}


def test_every_strategy_has_its_rule() -> None:
    table = PAGE[: PAGE.index("## Options")]
    assert [row[0].strip("`") for row in rows(table)[1:]] != []
    assert {row[0].strip("`") for row in rows(table)[1:]} == set(STRATEGIES)


def test_every_logged_metric_is_listed() -> None:
    logged: set[str] = set()
    for strategy in STRATEGIES:
        limited = "tokens" in STRATEGIES[strategy].budget_units
        for options in ({"mode": "weights"}, {"budget_unit": "tokens"} if limited else {}):
            allocator = BudgetAllocator(strategy, **options)
            allocator.begin(2)
            for _ in range(2):
                allocator.allocate(["a", "b"], total=8)
                allocator.weigh(["a", "b"], ["a", "b"], [1.0, 0.0])
                allocator.observe(["a", "b"], [1.0, 0.0], lengths=[5, 9])
            logged |= set(allocator.metrics())
    listed = [
        name
        for row in rows(section(PAGE, "## Logged metrics"))[1:]
        for name in re.findall(r"`([^`]+)`", row[0])
    ]
    assert sorted(listed) == sorted(logged)


@pytest.mark.parametrize("page", ["method.md", "strategies.md"])
def test_the_examples_run_in_the_order_of_the_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    module = ModuleType("docs_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    scope = vars(module)
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), scope)
    if page == "strategies.md":
        for conformance in (scope["TestFrontier"], scope["TestSmoothed"]):
            names = [name for name in dir(conformance) if name.startswith("test_")]
            assert len(names) >= 10
            for name in names:
                getattr(conformance(), name)()


def test_the_equation_table_names_functions_and_tests_that_exist() -> None:
    body = rows(section(METHOD, "## Equations, functions, tests"))
    equations = [row for row in body if len(row) == 3][1:]
    assert len(equations) == 14
    for _, function, test in equations:
        module, name = function.strip("`").split(".")
        assert hasattr(importlib.import_module(f"{coba_rl.allocation.__name__}.{module}"), name)
        file, test_name = test.strip("`").split("::")
        assert f"def {test_name}(" in (Path(__file__).parent / file).read_text()


def test_the_worked_values_are_those_of_the_code() -> None:
    body = {
        row[0]: [float(cell) for cell in row[1:]]
        for row in rows(section(METHOD, "## Equations, functions, tests"))
        if len(row) == 8
    }
    columns = zip(body["F̄"], body["F̃, the preferred pass rate"], body["α"], body["β"], strict=True)
    for failure, transformed, alpha, beta in columns:
        assert transform(failure) == pytest.approx(transformed, abs=6e-4)
        assert beta_shape(transform(failure), 11.0, 1.0, 10.0, 9.0) == pytest.approx((alpha, beta), abs=6e-3)
