"""`coba-rl allocate`: budgets for the prompts of a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.allocation import Allocation, BudgetAllocator
from coba_rl.allocation.strategies import make_strategy
from coba_rl.cli.config import parse_overrides
from coba_rl.cli.rates_file import Rates, check_output, read_rates, write_budgets
from coba_rl.cli.tables import print_json, print_table

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
        options = parse_overrides({"": self.options})[""]
        options = {name.replace("-", "_"): value for name, value in options.items()}
        allocator = BudgetAllocator(
            make_strategy(self.strategy, **options), bounds=(self.min_budget, self.max_budget)
        )
        allocation = allocate_rates(allocator, read_rates(self.file), self.total)
        records = [
            {"prompt_id": prompt_id, "pass_rate": None if math.isnan(p) else p, "budget": budget}
            for prompt_id, p, budget in zip(
                allocation.prompt_ids,
                allocation.pass_rates.tolist(),
                allocation.budgets.tolist(),
                strict=True,
            )
        ]
        if self.output is not None:
            write_budgets(self.output, records)
        if self.json:
            print_json({"budgets": records, "metrics": allocator.metrics()})
        else:
            self._print(records, allocator.metrics())
        return 0

    def _print(self, records: list[dict[str, Any]], metrics: dict[str, float]) -> None:
        if self.output is None:
            shown = [
                [
                    str(r["prompt_id"]),
                    "unknown" if r["pass_rate"] is None else f"{r['pass_rate']:.3f}",
                    str(r["budget"]),
                ]
                for r in records[:_ROWS_SHOWN]
            ]
            more = f", first {_ROWS_SHOWN} of {len(records)}" if len(records) > _ROWS_SHOWN else ""
            print_table(f"Budgets ({self.strategy}{more})", ["prompt_id", "pass rate", "budget"], shown)
        print_table(
            "Metrics", ["metric", "value"], [[name, f"{value:.4g}"] for name, value in metrics.items()]
        )


def allocate_rates(allocator: BudgetAllocator, rates: Rates, total: int) -> Allocation:
    """Allocate `total` rollouts to prompts of which a file tells something.

    Counts are observed, as if they were the last step's rollouts; pass rates are used as they are, and their mean
    is the policy's capability.
    """
    if rates.visits is not None:
        allocator.strategy.observe(rates.visits)
    p = rates.pass_rate_P
    if p is not None and not np.isnan(p).all():
        allocator.strategy.capability.update(1.0 - float(np.nanmean(p)))
    return allocator.allocate(rates.prompt_ids, total, pass_rates=p)
