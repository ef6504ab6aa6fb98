"""The trainer mode `coba_sync`: verl's synchronous trainer with a budget for each prompt.

Every override calls `super()`; what it relies on upstream is listed, and checked, in the contract tests.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
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

from coba_rl.errors import CobaError
from coba_rl.hosts.session import BudgetSession, Outcome
from coba_rl.hosts.verl.filtering import lone_keys, surplus_keys
from coba_rl.hosts.verl.options import CobaOptions, compares_rollouts
from coba_rl.hosts.verl.outcomes import read_outcomes
from coba_rl.hosts.verl.prompts import PromptIds
from coba_rl.hosts.verl.rounds import ROLLOUT_FIELD, as_one, check_two_rounds, rest_of
from coba_rl.hosts.verl.run_log import RunLog
from coba_rl.hosts.verl.weights import weigh_advantages

TRAINER_MODE = "coba_sync"
"""The value of `trainer.v1.trainer_mode`."""


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
        self.mean_budget = int(config.actor_rollout_ref.rollout.n)
        num_prompts = int(config.data.train_batch_size)
        self.coba_options.check(allocator, num_prompts, self.mean_budget, config.algorithm.adv_estimator)
        if allocator.pilot:
            check_two_rounds(config, allocator.pilot)
        # The step's batch and how many rollouts each prompt of it has, while only its pilot is submitted.
        self._pilot: tuple[TensorDict, int] | None = None
        self.session = BudgetSession(
            allocator,
            settings={"actor_rollout_ref.rollout.n": self.mean_budget, "data.train_batch_size": num_prompts},
            data_ids=lambda: self.prompt_ids.of_dataset(self.train_dataset),
            advice="It is algorithm.coba.success_threshold here; or set algorithm.coba.success_key to a key of the reward "
            "function's result that holds 0 to 1.",
        )
        self.run_log = RunLog(Path(config.trainer.default_local_dir))
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # verl branches on this literal
        super().__init__(config)

    # ------------------------------------------------------------------ before the first step

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        if self.session.allocator.pilot:
            self._sample, buffer.sample = buffer.sample, self._sample_both_rounds
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
                self.session.record(self._read(list(rows), list(rows.values())))
            clear_groups(partition_id, uids)

        buffer._clear_groups = judge_and_clear
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.prompt_ids = PromptIds.choose(self.train_dataset)
        self.session.settings["prompt_ids"] = self.prompt_ids.scheme
        print(self.prompt_ids.message, flush=True)
        self.session.begin(max(1, int(self.total_training_steps)))

    # ------------------------------------------------------------------ a step

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        sources, extras, prompts = (list(batch[name]) for name in ("data_source", "extra_info", "raw_prompt"))
        ids, uids = self.prompt_ids.of(sources, extras, prompts), list(batch["uid"])
        # The first call of a step has its batch; later ones replace filtered or failed groups.
        allocation = self.session.plan(
            ids,
            len(ids) * self.mean_budget,
            groups=uids,
            refill=bool(self.session.open_groups),
        )
        budgets = allocation.budgets
        self._pilot = (batch, int(budgets[0])) if allocation.is_pilot else None
        if (budgets != self.mean_budget).any():
            batch[ROLLOUT_FIELD] = torch.from_numpy(budgets)
        return super()._submit_batch_to_rollout(batch)

    def _sample_both_rounds(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for the rollouts of a batch: for its pilot, then for what is submitted by what that scored."""
        batch, metrics = self._sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        if partition_id != "train" or self._pilot is None:
            return batch, metrics
        self.session.record(self._read(batch.keys, batch.tags))
        rest = rest_of(*self._pilot, self.session.plan_rest().budgets)
        self._pilot = None
        if rest is None:
            return batch, metrics
        super()._submit_batch_to_rollout(rest)
        later, more = self._sample(global_steps=global_steps, partition_id=partition_id, batch_size=len(rest))
        return as_one(batch, later), {**metrics, **more}

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
        total = int(self.config.data.train_batch_size) * self.mean_budget
        return self._leave_out(batch, surplus_keys(batch.keys, self._read(batch.keys, batch.tags), total))

    def _leave_out(self, batch: KVBatchMeta, keys: set[str]) -> KVBatchMeta:
        """The batch without some rows, which were generated and judged all the same."""
        if not keys:
            return batch
        rows = list(zip(batch.keys, batch.tags, strict=True))
        dropped = [(key, tag) for key, tag in rows if key in keys]
        kept = [(key, tag) for key, tag in rows if key not in keys]
        self.session.record(self._read([key for key, _ in dropped], [tag for _, tag in dropped]))
        tq.kv_clear(keys=[key for key, _ in dropped], partition_id=batch.partition_id)
        return replace(batch, keys=[key for key, _ in kept], tags=[tag for _, tag in kept])

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # First, because rollout correction takes tokens out of the response masks.
        outcomes = self._read(batch.keys, batch.tags)
        batch = super()._compute_advantage(batch, metrics)
        self.session.record(outcomes)
        if self.session.allocator.mode != "rollouts":
            groups = list(dict.fromkeys(outcome.group for outcome in outcomes))
            weigh_advantages(batch, dict(zip(groups, self.session.weigh(groups).tolist(), strict=True)))
        records, coba_metrics = self.session.finish(self.global_steps)
        self.run_log.allocations(records)
        metrics.update(coba_metrics)
        metrics["coba/padding_rows"] = float(sum(bool(tag.get("is_padding")) for tag in batch.tags))
        return batch

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.run_log.metrics(self.global_steps, metrics)

    def _read(self, keys: list[str], tags: list[dict[str, Any]]) -> list[Outcome]:
        return read_outcomes(keys, tags, success_key=self.coba_options.success_key)

    # ------------------------------------------------------------------ checkpoints

    def _save_checkpoint(self) -> None:
        # First, because verl ends by marking the checkpoint as the latest.
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        self.session.save(folder)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            # Filtering draws further prompts, so that an epoch does not end where its steps do.
            amid_epoch = self._filters_groups or self.global_steps % self.steps_per_epoch != 0
            for message in self.session.load(self._resumed_folder(), amid_epoch=amid_epoch):
                warnings.warn(message, stacklevel=2)
        self.run_log.truncate(self.global_steps)

    def _resumed_folder(self) -> Path:
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
