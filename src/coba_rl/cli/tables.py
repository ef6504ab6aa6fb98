"""Terminal output shared by the commands."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_json(value: Any) -> None:
    """Print machine-readable results to standard output."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table: first column left, the others right."""
    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(f"\n[bold]{escape(title)}[/bold]")
    console.print(table)


def format_estimate(estimate: dict[str, float | None] | None) -> str:
    """A value with its interval, as the tables show it."""
    if estimate is None:
        return "not measured"
    value, low, high = (
        math.nan if estimate[key] is None else estimate[key] for key in ("value", "low", "high")
    )
    return f"{value:.3f}  [{low:.3f}, {high:.3f}]"
