"""Run verl's own trainer on a CPU: platform, FSDP engine, rollout and agent loop, through verl's registries.

For trying a configuration and for tests: everything of `python -m verl.trainer.main_ppo` is real (Ray,
TransferQueue, agent loop, reward loop, FSDP2, checkpoints), only the device and the generator are small. Load it by

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=coba_rl.hosts.verl

and take the settings a CPU needs from the configuration shipped here:

    python -m verl.trainer.main_ppo 'hydra.searchpath=[pkg://coba_rl.hosts.verl.cpu.conf]' +coba=cpu …

`trainer.n_gpus_per_node` is the number of data-parallel workers. Importing this package registers it all.
"""

from __future__ import annotations

import importlib
import os
import warnings

ROLLOUT_NAME = "coba_cpu"
"""The value of `actor_rollout_ref.rollout.name`."""

_ENVIRONMENT = {
    # One thread a TransferQueue client: it would ask for eight, and warn at every call of having fewer cores.
    "TQ_NUM_THREADS": "1",
    # A dozen processes share the cores: one thread each, and none that keeps a core busy while it waits.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    # Ray's own 15 would leave workers next to nothing of a core that another program keeps busy.
    "RAY_worker_niceness": "0",
}
"""Defaults; what the user has set stays."""


def register() -> None:
    """Add the CPU platform, engine, rollout and agent loop to verl's registries; harmless when repeated.

    A module that verl loads itself and that imports verl's trainer must call this before it does: verl asks for
    the platform while its modules are being imported.
    """
    # Inherited by all processes that Ray starts from here.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # First verl alone: it loads external modules, which may come back here while this package is half imported.
    importlib.import_module("verl")
    importlib.import_module(f"{__name__}.platform")
    importlib.import_module(f"{__name__}.process_group").use_gloo()
    with warnings.catch_warnings():
        # verl warns of every other engine that is not installed.
        warnings.simplefilter("ignore")
        importlib.import_module(f"{__name__}.engine")
        importlib.import_module(f"{__name__}.agent_loop")

    from verl.workers.rollout import base, replica

    # Loaded when a worker asks for it: most processes never generate.
    base._ROLLOUT_REGISTRY[ROLLOUT_NAME, "async"] = f"{__name__}.rollout.ServerAdapter"
    replica.RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)


def _load_replica() -> type:
    return importlib.import_module(f"{__name__}.rollout").CPUReplica


register()
