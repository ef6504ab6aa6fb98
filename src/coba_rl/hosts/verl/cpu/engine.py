"""verl's FSDP engine, registered for the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngine(FSDPEngineWithLMHead):
    """Policy and reference model: FSDP2 only, no packed sequences, nothing to offload to."""

    def __init__(
        self, model_config: Any, engine_config: Any, optimizer_config: Any, checkpoint_config: Any
    ) -> None:
        if engine_config.strategy != "fsdp2":
            raise ValueError(
                f"the engine's strategy is {engine_config.strategy!r}; on the CPU only 'fsdp2' works: "
                "set actor_rollout_ref.actor.strategy=fsdp2 (the reference model follows it)"
            )
        if model_config.use_remove_padding:
            raise ValueError(
                "use_remove_padding is True; packed sequences need flash attention, which the CPU lacks: "
                "set actor_rollout_ref.model.use_remove_padding=False"
            )
        super().__init__(model_config, engine_config, optimizer_config, checkpoint_config)

    def _build_fsdp_module(self, module: Any) -> Any:
        # verl offloads a forward-only model to pinned host memory, which needs an accelerator to pin for.
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config
