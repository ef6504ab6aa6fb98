"""Terminal output shared by the commands."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """Print machine-readable results to standard output."""
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table: first column left, the others right."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
