"""Terminal output shared by the commands."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coba_rl.files import to_json


def print_json(value: Any) -> None:
    """Print machine-readable results to standard output; a number that JSON lacks is null."""
    print(to_json(value, indent=2))


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table: first column left, the others right. Ids and names are text, whatever they look like."""
    table = Table()
    for i, column in enumerate(columns):
        table.add_column(plain(column), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(plain, row))
    console = Console()
    console.print()
    console.print(plain(title, style="bold"))
    console.print(table)


def plain(text: str, style: str = "") -> Text:
    r"""Text for rich to show as it is: no markup, no emoji codes, and no signs that would steer the terminal.

    Example:
        >>> str(plain("[red]a[/b] :smile: \x1b[2J"))
        '[red]a[/b] :smile: \\x1b[2J'
    """
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), style)


def format_estimate(estimate: dict[str, float | None] | None) -> str:
    """A value with its interval, as the tables show it."""
    if estimate is None:
        return "not measured"
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    interval = "no interval" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
    return f"{value:.3f}  {interval}"
