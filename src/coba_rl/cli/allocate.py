"""`coba-rl allocate`: budgets for the prompts of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coba_rl.allocation.spec import AllocatorSpec
from coba_rl.cli.arguments import parse_overrides
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import OptionError
from coba_rl.rates import allocate_rates, budget_rows, check_output, read_rates, write_budgets

_ROWS_SHOWN = 20


@dataclass(frozen=True)
class AllocateCommand:
    """Fields are the command's parameters."""

    file: Path
    total: int
    strategy: str
    min_budget: int
    max_budget: int
    output: Path | None
    json: bool
    options: dict[str, str]

    def run(self) -> int:
        if self.output is not None:
            check_output(self.output)
        allocator = self._spec().build()
        allocation = allocate_rates(allocator, read_rates(self.file), self.total)
        if self.output is not None:
            write_budgets(self.output, allocation)
        rows, metrics = budget_rows(allocation), allocator.metrics()
        if self.json:
            print_json({"budgets": rows, "metrics": metrics})
        else:
            self._print(rows, metrics)
        return 0

    def _spec(self) -> AllocatorSpec:
        options = parse_overrides({"": self.options})[""]
        section = {name.replace("-", "_"): value for name, value in options.items()}
        if "success_threshold" in section:
            raise OptionError(
                "--success-threshold judges scores, and a file of pass rates or counts has none: leave it out."
            )
        section |= {"strategy": self.strategy, "min_budget": self.min_budget, "max_budget": self.max_budget}
        return AllocatorSpec.from_mapping(section, "--")

    def _print(self, rows: list[dict[str, Any]], metrics: dict[str, float]) -> None:
        if self.output is None:
            rates = ["unknown" if row["pass_rate"] is None else f"{row['pass_rate']:.3f}" for row in rows]
            cells = [
                [str(row["prompt_id"]), rate, str(row["budget"])]
                for row, rate in zip(rows, rates, strict=True)
            ]
            more = f", first {_ROWS_SHOWN} of {len(rows)}" if len(rows) > _ROWS_SHOWN else ""
            title, columns = f"Budgets ({self.strategy}{more})", ["prompt_id", "pass rate", "budget"]
            print_table(title, columns, cells[:_ROWS_SHOWN])
        print_table("Metrics", ["metric", "value"], [[name, f"{v:.4g}"] for name, v in metrics.items()])
