"""`coba-rl allocate`: budgets for the prompts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.cli.arguments import Count, parse_overrides
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import OptionError
from coba_rl.rates import allocate_rates, budget_rows, check_output, read_rates, write_budgets

_ROWS_SHOWN = 20


def allocate(
    file: Path,
    *,
    total: Count,
    strategy: str = "coba",
    min_budget: Count = 2,
    max_budget: Count = 128,
    output: Path | None = None,
    json: bool = False,
    **options: str,
) -> None:
    """Give the prompts of a file their rollouts: what a strategy would do with what you know of them.

    Parameters
    ----------
    file
        CSV, JSONL, JSON or parquet with `prompt_id` and either `pass_rate`, or `successes` and `attempts`.
    total
        Rollouts to share out.
    strategy
        See `coba-rl train --help`.
    min_budget
        Fewest rollouts of a prompt.
    max_budget
        Most rollouts of a prompt.
    output
        Write the budgets to this file (CSV, JSONL or parquet, by its ending) instead of the terminal.
    json
        Print JSON instead of a table.
    options
        Any option of the strategy, e.g. --kappa 15.
    """
    if output is not None:
        check_output(output)
    section = {name.replace("-", "_"): value for name, value in parse_overrides({"": options})[""].items()}
    if "success_threshold" in section:
        raise OptionError(
            "--success-threshold judges scores, and a file of pass rates or counts has none: leave it out."
        )
    if "mode" in section:
        raise OptionError(
            "--mode says what a trainer does with budgets, and a file of them is the same in both: leave it out."
        )
    if "pilot" in section:
        raise OptionError("--pilot needs rollouts to look at, and a file has none: leave it out.")
    if "budget_unit" in section:
        raise OptionError("--budget-unit needs lengths of rollouts, and a file has none: leave it out.")
    section |= {"strategy": strategy, "min_budget": min_budget, "max_budget": max_budget}
    allocator = AllocatorSpec.from_mapping(section, "--").build()
    allocation = allocate_rates(allocator, read_rates(file), total)
    if output is not None:
        write_budgets(output, allocation)
    rows, metrics = budget_rows(allocation), allocator.metrics()
    if json:
        print_json({"budgets": rows, "metrics": metrics})
        return
    if output is None:
        _print_budgets(strategy, rows)
    print_table("Metrics", ["metric", "value"], [[name, f"{v:.4g}"] for name, v in metrics.items()])


def _print_budgets(strategy: str, rows: list[dict[str, Any]]) -> None:
    rates = ["unknown" if row["pass_rate"] is None else f"{row['pass_rate']:.3f}" for row in rows]
    cells = [[str(row["prompt_id"]), rate, str(row["budget"])] for row, rate in zip(rows, rates, strict=True)]
    more = f", first {_ROWS_SHOWN} of {len(rows)}" if len(rows) > _ROWS_SHOWN else ""
    print_table(f"Budgets ({strategy}{more})", ["prompt_id", "pass rate", "budget"], cells[:_ROWS_SHOWN])
