"""Terminal output shared by the commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coba_rl.files import to_json
from coba_rl.records import Estimate


def print_json(value: Any) -> None:
    """Print machine-readable results to standard output; a number that JSON lacks is null."""
    print(to_json(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
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


def format_estimate(estimate: Estimate | None) -> str:
    """A value with its interval, as the tables show it.

    Example:
        >>> format_estimate(Estimate(0.5, 0.25, 0.75)), format_estimate(None)
        ('0.500  [0.250, 0.750]', 'not measured')
    """
    if estimate is None:
        return "not measured"
    is_sure = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]" if is_sure else "no interval"
    return f"{estimate.value:.3f}  {interval}"
