"""Run verl's own trainer on a CPU: platform, FSDP engine and rollout, through verl's registries.

For trying a configuration and for tests: everything of `python -m verl.trainer.main_ppo` is real (Ray,
TransferQueue, agent loop, reward loop, FSDP2, checkpoints), only the device and the generator are small. Load it by

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=coba_rl.hosts.verl.cpu

and take the settings a CPU needs from the configuration shipped here:

    python -m verl.trainer.main_ppo 'hydra.searchpath=[pkg://coba_rl.hosts.verl.cpu.conf]' +coba=cpu …

`trainer.n_gpus_per_node` is the number of data-parallel workers. Importing this package registers it all.
"""

from __future__ import annotations

import importlib


def register() -> None:
    """Add the CPU platform, engine and rollout to verl's registries; harmless when repeated.

    The order matters: verl's modules ask for the platform while they are being imported.
    """
    importlib.import_module("coba_rl.hosts.verl.cpu.platform")

    from coba_rl.hosts.verl.cpu.process_group import use_gloo

    use_gloo()
    importlib.import_module("coba_rl.hosts.verl.cpu.engine")

    from verl.workers.rollout import base, replica

    # Loaded when a worker asks for it: the rollout pulls in the server, which most processes never run.
    base._ROLLOUT_REGISTRY["coba_cpu", "async"] = "coba_rl.hosts.verl.cpu.rollout.ServerAdapter"
    replica.RolloutReplicaRegistry.register("coba_cpu", _load_replica)


def _load_replica() -> type:
    from coba_rl.hosts.verl.cpu.rollout import CPUReplica

    return CPUReplica


register()
