"""The CPU platform in verl's registries."""

from __future__ import annotations

import importlib
import os
from types import ModuleType, SimpleNamespace

import pytest
import torch

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


def test_verl_finds_platform_engine_rollout_and_agent_loop() -> None:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.plugin.platform import get_platform
    from verl.utils.device import get_torch_device
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from coba_rl.hosts.verl import cpu

    cpu.register()  # Repeating it changes nothing.
    assert get_platform().device_name == "cpu"
    assert torch.zeros(1).to(get_platform().current_device()).device.type == "cpu"
    assert get_torch_device().max_memory_allocated() > 0
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__ == "CPUEngine"
    assert get_rollout_class("coba_cpu").__name__ == "ServerAdapter"
    assert get_rollout_replica_class("coba_cpu").__name__ == "CPUReplica"
    assert _agent_loop_registry["coba_text"]["_target_"].endswith("TextAgentLoop")


def test_processes_share_the_cores_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from coba_rl.hosts.verl import cpu

    shared = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "RAY_worker_niceness": "0"}
    for name in shared:
        monkeypatch.setenv(name, "")  # So that it is put back afterwards.
        monkeypatch.delenv(name)
    cpu.register()
    assert {name: os.environ[name] for name in shared} == shared
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    cpu.register()
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("strategy", "remove_padding", "remedy"),
    [("fsdp", False, "actor.strategy=fsdp2"), ("fsdp2", True, "use_remove_padding=False")],
)
def test_settings_that_need_a_gpu_name_their_remedy(strategy: str, remove_padding: bool, remedy: str) -> None:
    engine: ModuleType = importlib.import_module("coba_rl.hosts.verl.cpu.engine")
    model_config = SimpleNamespace(use_remove_padding=remove_padding)
    with pytest.raises(ValueError, match=remedy):
        engine.CPUEngine(model_config, SimpleNamespace(strategy=strategy), None, None)
