"""The trainer mode `coba_sync`: verl's synchronous trainer with a budget for each prompt.

Every override calls `super()`; what it relies on upstream is listed, and checked, in the contract tests.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from coba_rl.errors import CobaError, StateError
from coba_rl.hosts.data_order import other_order
from coba_rl.hosts.state import STATE_FILE, read_state, write_state
from coba_rl.hosts.verl.allocation_log import AllocationLog
from coba_rl.hosts.verl.filtering import lone_keys, surplus_keys
from coba_rl.hosts.verl.options import CobaOptions, compares_rollouts
from coba_rl.hosts.verl.outcomes import read_outcomes
from coba_rl.hosts.verl.prompts import PromptIds, data_order
from coba_rl.hosts.verl.step import StepAllocation

TRAINER_MODE = "coba_sync"
"""The value of `trainer.v1.trainer_mode`."""
ROLLOUT_FIELD = "__rollout_n__"
"""The field of a prompt from which verl's agent loop takes its number of rollouts."""


@register_trainer(TRAINER_MODE)
class CobaTrainerSync(PPOTrainerSync):
    """Gives each prompt its number of rollouts before verl generates them, and learns from what they scored.

    Args:
        config: verl's configuration, with the options of `CobaOptions` under `algorithm.coba`.

    Raises:
        OptionError, UnknownStrategyError, InfeasibleBudgetError, ConfigError: A job that could not run to its end.
    """

    def __init__(self, config: DictConfig) -> None:
        section = OmegaConf.select(config, "algorithm.coba")
        self.coba_options = CobaOptions.from_config(
            OmegaConf.to_container(section, resolve=True) if section is not None else None
        )
        allocator = self.coba_options.allocator.build()
        rollout_n = int(config.actor_rollout_ref.rollout.n)
        self.coba_options.check(
            allocator, int(config.data.train_batch_size), rollout_n, config.algorithm.adv_estimator
        )
        self.coba_step = StepAllocation(allocator, rollout_n)
        self.allocation_log = AllocationLog(Path(config.trainer.default_local_dir))
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # verl branches on this literal
        super().__init__(config)

    # ------------------------------------------------------------------ before the first step

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        if not isinstance(buffer, ReplayBuffer):
            warnings.warn(
                f"The sampler {type(buffer).__name__} is no subclass of verl's ReplayBuffer: prompts it discards teach "
                "the allocator nothing.",
                stacklevel=2,
            )
            return buffer
        clear_groups = buffer._clear_groups

        def judge_and_clear(partition_id: str, uids: set[str]) -> None:
            # Groups that filtering throws away were generated and judged all the same: they are the ones whose pass
            # rate is known to be near 0 or 1.
            if partition_id == "train" and uids:
                rows = {
                    key: tag
                    for key, tag in buffer.partitions[partition_id].items()
                    if key.split("_")[0] in uids
                }
                self.coba_step.add(self._read(list(rows), list(rows.values())))
            clear_groups(partition_id, uids)

        buffer._clear_groups = judge_and_clear
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.prompt_ids = PromptIds.choose(self.train_dataset)
        self.data_order = data_order(self.train_dataset)
        print(self.prompt_ids.message, flush=True)
        strategy = self.coba_step.allocator.strategy
        if getattr(strategy, "num_steps", 0) is None:
            strategy.num_steps = max(1, int(self.total_training_steps))

    # ------------------------------------------------------------------ a step

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        sources, extras, prompts = (list(batch[name]) for name in ("data_source", "extra_info", "raw_prompt"))
        budgets = self.coba_step.allocate(list(batch["uid"]), self.prompt_ids.of(sources, extras, prompts))
        if (budgets != self.coba_step.mean_budget).any():
            batch[ROLLOUT_FIELD] = torch.from_numpy(budgets)
        return super()._submit_batch_to_rollout(batch)

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> KVBatchMeta:
        # Before verl fills up with padding, so that what is left out is made up for.
        num_rows = len(batch.keys)
        if compares_rollouts(self.config.algorithm.adv_estimator):
            batch = self._without_lone_rollouts(batch)
        if self._filters_groups:
            batch = self._keep_within_total(batch)
        metrics["coba/dropped_rows"] = float(num_rows - len(batch.keys))
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    @property
    def _filters_groups(self) -> bool:
        return bool(OmegaConf.select(self.config, "algorithm.filter_groups.enable"))

    def _without_lone_rollouts(self, batch: KVBatchMeta) -> KVBatchMeta:
        lone = lone_keys(batch.keys)
        if len(lone) == len(batch.keys):
            raise CobaError(
                f"Failures left no prompt of step {self.global_steps} with two rollouts to compare. The log says why "
                "rollouts failed: mend that, and resume from the last checkpoint."
            )
        return self._leave_out(batch, lone)

    def _keep_within_total(self, batch: KVBatchMeta) -> KVBatchMeta:
        total = int(self.config.data.train_batch_size) * self.coba_step.mean_budget
        return self._leave_out(batch, surplus_keys(batch.keys, self._read(batch.keys, batch.tags), total))

    def _leave_out(self, batch: KVBatchMeta, keys: set[str]) -> KVBatchMeta:
        """The batch without some rows, which were generated and judged all the same."""
        if not keys:
            return batch
        rows = list(zip(batch.keys, batch.tags, strict=True))
        dropped = [(key, tag) for key, tag in rows if key in keys]
        kept = [(key, tag) for key, tag in rows if key not in keys]
        self.coba_step.add(self._read([key for key, _ in dropped], [tag for _, tag in dropped]))
        tq.kv_clear(keys=[key for key, _ in dropped], partition_id=batch.partition_id)
        return KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key, _ in kept],
            tags=[tag for _, tag in kept],
            fields=batch.fields,
            extra_info=batch.extra_info,
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        self.coba_step.add(self._read(batch.keys, batch.tags))
        records, coba_metrics = self.coba_step.finish(self.global_steps)
        self.allocation_log.append(records)
        metrics.update(coba_metrics)
        metrics["coba/padding_rows"] = float(sum(bool(tag.get("is_padding")) for tag in batch.tags))
        return batch

    def _read(self, keys: list[str], tags: list[dict[str, Any]]) -> list[Any]:
        return read_outcomes(keys, tags, success_key=self.coba_options.success_key)

    # ------------------------------------------------------------------ checkpoints

    def _save_checkpoint(self) -> None:
        # First, because verl ends by marking the checkpoint as the latest.
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        allocator = self.coba_step.allocator.state_dict(arrays=True)
        data = {"prompt_ids": self.prompt_ids.scheme, "data_order": self.data_order}
        write_state(folder, {"allocator": allocator, **data})
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self._load_allocator(self._resumed_folder())
        self.allocation_log.truncate(self.global_steps)

    def _resumed_folder(self) -> Path:
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _load_allocator(self, folder: Path) -> None:
        state = read_state(folder)
        if state is None:
            warnings.warn(
                f"{folder} has no {STATE_FILE}: training goes on, but pass rates start anew.", stacklevel=2
            )
            return
        try:
            self.coba_step.allocator.load_state_dict(state["allocator"])
        except StateError as error:
            raise StateError(f"{folder / STATE_FILE}: {error}") from error
        if state.get("prompt_ids") != self.prompt_ids.scheme:
            warnings.warn(
                f"Prompts were identified by {state.get('prompt_ids')!r} when {folder} was saved and are by "
                f"{self.prompt_ids.scheme!r} now: the saved pass rates will not be found. Resume with the data of "
                "the checkpoint.",
                stacklevel=2,
            )
        # Filtering draws further prompts, so that an epoch does not end where its steps do.
        amid_epoch = self._filters_groups or self.global_steps % self.steps_per_epoch != 0
        for message in other_order(state.get("data_order"), self.data_order, amid_epoch=amid_epoch):
            warnings.warn(message, stacklevel=2)
