"""CoBA-RL inside TRL: `CobaGRPOConfig` and `CobaGRPOTrainer`, drop-ins for `GRPOConfig` and `GRPOTrainer`."""

from __future__ import annotations

try:
    import trl  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"coba_rl.hosts.trl needs TRL, which cannot be imported ({error}). Install it with: pip install 'coba-rl[trl]'"
    ) from error

from coba_rl.hosts.trl.config import CobaGRPOConfig
from coba_rl.hosts.trl.trainer import CobaGRPOTrainer

__all__ = ["CobaGRPOConfig", "CobaGRPOTrainer"]
