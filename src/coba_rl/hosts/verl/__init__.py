"""CoBA inside verl: the trainer mode `coba_sync` of `python -m verl.trainer.main_ppo`.

    VERL_USE_EXTERNAL_MODULES=coba_rl.hosts.verl python -m verl.trainer.main_ppo trainer.v1.trainer_mode=coba_sync \
        +algorithm.coba.strategy=coba +algorithm.coba.min_budget=2 +algorithm.coba.max_budget=128 …

Importing this package registers the trainer with verl, and with `VERL_PLATFORM=cpu` the CPU platform as well.
"""

from __future__ import annotations

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    # Before anything of verl's trainer: verl asks for the platform while its modules are being imported.
    from coba_rl.hosts.verl import cpu

    cpu.register()

from coba_rl.hosts.verl.options import CobaOptions
from coba_rl.hosts.verl.trainer import CobaTrainerSync

__all__ = ["CobaOptions", "CobaTrainerSync"]
