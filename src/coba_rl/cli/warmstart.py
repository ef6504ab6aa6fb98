"""`coba-rl warmstart`: make the embedded policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coba_rl.cli.outputs import check_folder
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import print_json, print_table
from coba_rl.errors import ConfigError
from coba_rl.packages import need
from coba_rl.runs.models import be_quiet


@dataclass(frozen=True)
class WarmstartCommand:
    """Fields are the command's parameters."""

    regime: str
    seed: int
    output_dir: Path
    json: bool

    def run(self) -> int:
        need(["torch", "transformers"], "warmstart")
        check_folder(self.output_dir)
        if self.output_dir.exists() and any(self.output_dir.iterdir()):
            raise ConfigError(f"{str(self.output_dir)!r} is not empty. Choose another --output-dir.")
        from coba_rl.tasks.warmstart import warmstart

        be_quiet()
        with counting(f"warm start, {self.regime}") as progress:
            metrics = warmstart(self.regime, seed=self.seed, output_dir=self.output_dir, progress=progress)
        if self.json:
            print_json(metrics)
        else:
            print_table(
                f"Policy in {self.output_dir}", ["", ""], [[k, f"{v:.4g}"] for k, v in metrics.items()]
            )
        return 0
