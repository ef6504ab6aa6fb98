"""What the host relies on in verl: each test names one thing, and says what to look at when it is gone."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

BASE = "verl.trainer.ppo.v1.trainer_base"
SYMBOLS = {
    # Trainer
    (BASE, "register_trainer"): ["name"],
    (BASE, "get_trainer_cls"): ["name"],
    (BASE, "PPOTrainer.__init__"): ["self", "config"],
    (BASE, "PPOTrainer._build_replay_buffer"): ["self"],
    (BASE, "PPOTrainer._init_dataloader"): ["self"],
    (BASE, "PPOTrainer._submit_batch_to_rollout"): ["self", "batch"],
    (BASE, "PPOTrainer._balance_batch"): ["self", "batch", "metrics"],
    (BASE, "PPOTrainer._compute_advantage"): ["self", "batch", "metrics"],
    (BASE, "PPOTrainer._save_checkpoint"): ["self"],
    (BASE, "PPOTrainer._load_checkpoint"): ["self"],
    ("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync"): None,
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._clear_groups"): ["self", "partition_id", "uids"],
    ("transfer_queue", "kv_batch_get"): ["keys", "partition_id", "select_fields"],
    ("transfer_queue", "kv_batch_put"): ["keys", "partition_id", "fields"],
    ("transfer_queue", "kv_clear"): ["keys", "partition_id"],
    ("transfer_queue", "KVBatchMeta"): ["partition_id", "keys", "tags", "fields", "extra_info"],
    # CPU platform
    ("verl.plugin.platform", "PlatformBase"): None,
    ("verl.plugin.platform", "PlatformRegistry.register"): None,
    ("verl.workers.engine.base", "EngineRegistry.register"): ["model_type", "backend", "device"],
    ("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithLMHead._build_fsdp_module"): [
        "self",
        "module",
    ],
    ("verl.workers.rollout.base", "BaseRollout"): None,
    ("verl.workers.rollout.base", "_ROLLOUT_REGISTRY"): None,
    ("verl.workers.rollout.replica", "RolloutReplica"): None,
    ("verl.workers.rollout.replica", "RolloutReplicaRegistry.register"): None,
    ("verl.workers.rollout.replica", "TokenOutput"): None,
    ("verl.experimental.agent_loop.agent_loop", "register"): ["agent_name"],
    ("verl.experimental.agent_loop.single_turn_agent_loop", "SingleTurnAgentLoop"): None,
    ("verl.utils.distributed", "initialize_global_process_group_ray"): ["timeout_second", "backend"],
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer.sample"): [
        "global_steps",
        "partition_id",
        "batch_size",
    ],
    ("verl.utils.tensordict_utils", "index_select_tensor_dict"): ["batch", "indices"],
    ("verl.utils.tensordict_utils", "assign_non_tensor_stack"): ["tensor_dict", "key", "val"],
    ("verl.utils.tensordict_utils", "get_tensordict"): ["tensor_dict"],
}

SOURCES = {
    "the agent loop takes a prompt's number of rollouts from the field __rollout_n__": (
        "verl.trainer.ppo.v1.agent_loop_tq",
        ['prompt.pop("__rollout_n__"', "for i in range(n)"],
    ),
    "a rollout's key is {uid}_{session}_{row}": (
        "verl.trainer.ppo.v1.agent_loop_tq",
        ['f"{uid}_{session_id}_{i}"'],
    ),
    "a filtered or surplus group is cleared by _clear_groups": (
        "verl.trainer.ppo.v1.replay_buffer",
        ["self._clear_groups(partition_id, evicted_uids)", "self._clear_groups(partition_id, surplus_uids)"],
    ),
    "a step's rollouts are waited for in one call": (
        BASE,
        ["self.replay_buffer.sample(\n                global_steps=self.global_steps,"],
    ),
    "rows of a batch stay in the TransferQueue when its prompts are taken": (
        "verl.trainer.ppo.v1.replay_buffer",
        ["tq.kv_clear(partition_id=partition_id, keys=selected_prompt_uids)"],
    ),
    "rollouts are compared by the field uid": (
        BASE,
        ['data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist()'],
    ),
    "rewards come with the rollouts unless the reward model shares the trainer's devices": (
        "verl.experimental.reward_loop.reward_loop",
        [
            "if not self.config.reward.reward_model.enable or self.config.reward.reward_model.enable_resource_pool"
        ],
    ),
    "refills are submitted like the step's batch": (BASE, ["refill_fn=self._add_prompts_to_generate"]),
    "response masks are 1 where the policy wrote, as they come from the agent loop": (
        "verl.experimental.agent_loop.agent_loop",
        ["response_mask", "1 for LLM generated token, 0 for tool response token"],
    ),
    "advantages are a nested field of the TransferQueue that _compute_advantage writes": (
        BASE,
        ['fields = ["advantages", "returns"]', "response_to_nested(data.batch[field], response_mask)"],
    ),
    "a nested field has the jagged layout": (
        "verl.workers.utils.padding",
        ["torch.nested.as_nested_tensor(response_list, layout=torch.jagged)"],
    ),
    "verl branches on the literal trainer mode 'sync'": (BASE, ['self.trainer_mode == "sync"']),
    "padding rows are tagged is_padding": ("verl.trainer.ppo.padding_utils", ["is_padding"]),
    "an epoch has steps_per_epoch steps": (BASE, ["self.steps_per_epoch = len(self.train_dataset)"]),
    "padding is made in _balance_batch, after rows were left out": (
        BASE,
        ["batch = upsample_batch_to_divisible_size(batch, batch_multiple"],
    ),
    "the latest marker is written by _save_checkpoint": (BASE, ["latest_checkpointed_iteration.txt"]),
    "a checkpoint is the folder global_step_N": (BASE, ['f"global_step_{self.global_steps}"']),
    "the reward function's result is reward_extra_info in extra_fields": (
        "verl.trainer.ppo.v1.replay_buffer",
        ['extra_fields.get("reward_extra_info"'],
    ),
    "the reward function's plain number is logged as acc": (
        "verl.experimental.reward_loop.reward_manager.naive",
        ['reward_extra_info["acc"] = score'],
    ),
    "a prompt's row keeps data_source, extra_info and raw_prompt": (
        "verl.utils.dataset.rl_dataset",
        ['row_dict["raw_prompt"]', 'row_dict["extra_info"]', "self.dataframe"],
    ),
}


def find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("symbol", "parameters"), SYMBOLS.items(), ids=lambda value: str(value))
def test_symbol(symbol: tuple[str, str], parameters: list[str] | None) -> None:
    import verl

    module, path = symbol
    advice = f"coba_rl.hosts.verl relies on it; this is verl {verl.__version__}, tested with 0.9.1."
    try:
        found = find(module, path)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"verl no longer has {module}.{path} ({error}): {advice}", pytrace=False)
    if parameters is not None:
        now = list(inspect.signature(found).parameters)
        if not set(parameters) <= set(now):
            pytest.fail(f"{module}.{path} takes {now}, expected {parameters}: {advice}", pytrace=False)


@pytest.mark.parametrize("fact", SOURCES)
def test_behaviour(fact: str) -> None:
    import verl

    module, fragments = SOURCES[fact]
    source = inspect.getsource(importlib.import_module(module))
    missing = [fragment for fragment in fragments if fragment not in source]
    if missing:
        pytest.fail(
            f"verl {verl.__version__}: it may no longer hold that {fact} ({module} lacks {missing}). Read that module, "
            "mend coba_rl.hosts.verl, then this test.",
            pytrace=False,
        )


def test_the_marker_is_written_last() -> None:
    source = inspect.getsource(find(BASE, "PPOTrainer._save_checkpoint"))
    marker = source.rindex("latest_checkpointed_iteration.txt")
    for part in ("self.actor_rollout_wg.save_checkpoint", "data.pt"):
        assert source.index(part) < marker, f"verl writes {part} after the marker of the latest checkpoint"


def test_the_trainer_mode_is_registered() -> None:
    from coba_rl.hosts.verl import CobaTrainerSync

    assert find(BASE, "get_trainer_cls")("coba_sync") is CobaTrainerSync
