"""`GRPOTrainer` in which every prompt gets the number of rollouts that the allocator gives it."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from coba_rl.allocation import Allocation
from coba_rl.errors import CobaError, ConfigError
from coba_rl.hosts.prompt_ids import dataset_ids, prompt_id
from coba_rl.hosts.session import BudgetSession
from coba_rl.hosts.trl.advantages import Advantages, group_advantages
from coba_rl.hosts.trl.config import CobaGRPOConfig
from coba_rl.hosts.trl.no_effect import no_effect
from coba_rl.hosts.trl.sampler import EpochRepeatSampler, inside_generation_window
from coba_rl.hosts.trl.waves import Wave, check_two_waves, generate_wave
from coba_rl.records import AllocationRecord


class CobaGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` that shares out each generation batch's rollouts by what its prompts can still teach.

    Before each training generation the M = N / num_generations prompts of the batch get budgets that sum to N, the
    batch is rebuilt with that many copies of each prompt, and afterwards advantages are computed within each
    prompt's own group and the outcomes are fed back. With `pilot`, rollouts are generated in two waves, of which the
    second follows what the first scored. Every process keeps its number of rows. Evaluation is that of `GRPOTrainer`. With `strategy="uniform"` training is that of `GRPOTrainer` to the last bit, except that a group
    whose rewards differ by rounding alone gets advantage 0 (`advantages.ALIKE_ULPS`), where `GRPOTrainer` scales the
    rounding up to a signal.

    ```python
    from datasets import load_dataset
    from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
    from trl.rewards import accuracy_reward

    trainer = CobaGRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=accuracy_reward,
        train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
        args=CobaGRPOConfig(
            output_dir="run", num_generations=16, min_budget=2, max_budget=128,
            per_device_train_batch_size=16, gradient_accumulation_steps=16,
        ),
    )
    trainer.train()
    ```

    Logged metrics, beside those of `GRPOTrainer` (`reward` and `frac_reward_zero_std` there are means over
    rollouts, so prompts with large budgets weigh more; the latter counts those whose own group's rewards do not
    differ, also where `GRPOTrainer` looks at the spread of the batch):

    | name | meaning |
    |---|---|
    | `coba/budget_min`, `_mean`, `_max` | rollouts of a prompt |
    | `coba/share_at_min`, `coba/share_at_max` | share of prompts at `min_budget`, `max_budget` |
    | `coba/effective_prompts` | (Σ B)² / Σ B²: over how many prompts the rollouts are spread |
    | `coba/weight_min`, `_max`, `coba/effective_prompts_by_weight` | the same of weights (`allocation_mode`) |
    | `coba/unseen_prompts` | prompts of the batch without a history |
    | `coba/expected_dead_groups` | expected share of groups whose rollouts all score alike |
    | `coba/failure_rate` | smoothed failure rate F̄ |
    | `coba/transformed_failure_rate` | F̃ of Eq. 6 (coba-paper, explore-exploit, coba-release) |
    | `coba/alpha`, `coba/beta`, `coba/tau` | shape of the value function (strategies that have one) |
    | `coba/success_per_prompt` | mean over prompts of the batch's pass rate: compare strategies by this |
    | `coba/success_per_rollout` | mean over rollouts |
    | `coba/dead_groups`, `_all_right`, `_all_wrong` | share of groups whose rollouts all scored alike |
    | `coba/unjudged_rollouts` | rollouts without a success value |
    | `coba/rollouts`, `coba/missing_rollouts` | rollouts planned; of these, those that never came back |
    | `coba/tokens` | tokens that the policy generated for them; tools wrote none of these |
    | `coba/expected_tokens` | what was expected of the budgets (`budget_unit="tokens"`) |
    | `coba/length_error` | mean over prompts of how far, relative to it, tokens were from what outcomes made expect |

    Save checkpoints at multiples of the generation window (steps_per_generation × num_iterations /
    gradient_accumulation_steps steps): `GRPOTrainer` drops a half-used generation at resume.

    Args:
        model, reward_funcs, *args, **kwargs: As for `GRPOTrainer`.
        args: The configuration; None: the defaults of `CobaGRPOConfig`.

    Attributes:
        allocator: The `BudgetAllocator`.
        last_allocation: `Allocation` of the last training generation, the same in every process; None before it.
        last_weights: (P,) factors of its prompts' advantages; None: 1 each.
        allocation_log: Called in the main process after each training generation with one `AllocationRecord` a
            prompt; `step` is the optimizer step that uses it first.

    Raises:
        ConfigError: `args` is no `CobaGRPOConfig`, `success_reward` names no reward function, or `pilot` with tools,
            environments or a `rollout_func`.
    """

    args: CobaGRPOConfig
    _tag_names = [*GRPOTrainer._tag_names, "coba-rl"]  # noqa: RUF012

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: CobaGRPOConfig | None = None,
        *positional: Any,
        **keywords: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
            args = CobaGRPOConfig(f"{name.split('/')[-1] or 'model'}-GRPO")
        if not isinstance(args, CobaGRPOConfig):
            raise ConfigError(
                f"args is a {type(args).__name__}: expected a CobaGRPOConfig, which takes the same arguments."
            )
        self.allocator = args.allocator_spec().build()
        self.last_allocation: Allocation | None = None
        self.last_weights: np.ndarray | None = None
        self.allocation_log: Callable[[list[AllocationRecord]], None] | None = None
        self._generating = False
        # Of all processes, while a training generation is under way.
        self._rewards_RF: torch.Tensor | None = None
        self._length_R: torch.Tensor | None = None
        self._both_waves: Wave | None = None
        self._train_sampler: EpochRepeatSampler | None = None
        self._warned_of_one_id = False
        super().__init__(model, reward_funcs, args, *positional, **keywords)
        self._success_index = args.success_index(self.reward_func_names)
        self._session = self._make_session(args)
        if args.pilot:
            check_two_waves(self)
        has_float32_copy = self.is_deepspeed_enabled or self.is_fsdp_enabled
        loaded: Any = self.model
        for message in no_effect(args, () if has_float32_copy else loaded.parameters()):
            self._warn(message)

    def _make_session(self, args: CobaGRPOConfig) -> BudgetSession:
        name = self.reward_func_names[self._success_index]
        return BudgetSession(
            self.allocator,
            # Every process allocates, so that an error is raised in all of them; the main one's result counts in all.
            agree=lambda allocation: broadcast_object_list([allocation])[0],
            settings={
                "num_generations": args.num_generations,
                "generation_batch_size": args.generation_batch_size,
            },
            data_ids=lambda: dataset_ids(
                self.train_dataset, args.prompt_id_column, whole_row=self._id_is_whole_row()
            ),
            advice=f"The success is that of the reward function {name!r}: set success_reward to one that returns 0 to 1.",
        )

    @property
    def _mean_budget(self) -> int:
        return int(self.args.num_generations or 0)

    # --- Data ---

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        if type(sampler) is not RepeatSampler:
            return sampler
        self._train_sampler = EpochRepeatSampler.like(sampler)
        return self._train_sampler

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns = self._signature_columns  # those that remove_unused_columns keeps
        if columns is not None and self.args.prompt_id_column not in columns:
            columns.append(self.args.prompt_id_column)

    def _id_is_whole_row(self) -> bool:
        return getattr(self, "environment_factories", None) is not None

    def _prompt_ids(self, rows: list[dict[str, Any]]) -> list[str | int]:
        column, whole_row = self.args.prompt_id_column, self._id_is_whole_row()
        ids = [prompt_id(row, column, whole_row=whole_row) for row in rows]
        if len(ids) > 1 and len(set(ids)) == 1 and not self._warned_of_one_id:
            self._warned_of_one_id = True
            self._warn(
                f"All {len(ids)} prompts of the generation batch have the id {ids[0]!r}, so they share one history "
                f"and get equal budgets. Give the data a {column!r} column that tells them apart."
            )
        return ids

    # --- One generation ---

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        model: Any = self.model
        if not model.training:
            return super()._generate_and_score_completions(inputs)
        self._generating = True
        try:
            allocation, rows = self._allocate(inputs)
            output = super()._generate_and_score_completions(rows)
            if self._rewards_RF is None:
                raise CobaError("GRPOTrainer computed no rewards: this TRL version is not supported.")
            self._record(self._rewards_RF)
            self._set_advantages(output, allocation, self._rewards_RF)
            self._finish()
        finally:
            self._generating, self._rewards_RF, self._both_waves, self._length_R = False, None, None, None
            self._session.drop(self._session.open_groups)  # none, unless something failed
        return output

    def _allocate(self, inputs: list[dict[str, Any]]) -> tuple[Allocation, list[dict[str, Any]]]:
        """Budgets of the whole generation batch, and this process's rows of the rebuilt batch."""
        self._begin()
        first = self.accelerator.process_index * len(inputs)
        heads = [row for index, row in enumerate(inputs, first) if index % self._mean_budget == 0]
        prompts = gather_object(heads)
        total = len(inputs) * self.accelerator.num_processes
        allocation = self._session.plan(self._prompt_ids(prompts), total)
        if allocation.is_pilot:
            allocation, self._both_waves = self._in_two_waves(allocation, prompts)
        self.last_allocation = allocation
        own = allocation.repeat_index[self._own_rows(len(inputs))]
        # Copies, because GRPOTrainer writes the results of a rollout into its row.
        return allocation, [copy.deepcopy(prompts[position]) for position in own]

    def _own_rows(self, num_rows: int) -> slice:
        """Which of all rollouts are those of this process, of `num_rows`."""
        first = self.accelerator.process_index * num_rows
        return slice(first, first + num_rows)

    def _in_two_waves(self, pilot: Allocation, prompts: list[dict[str, Any]]) -> tuple[Allocation, Wave]:
        """Whole budgets, and all rollouts of the step, group after group."""
        wave = generate_wave(self, [prompts[position] for position in pilot.repeat_index])
        self._session.record_all(self._success(wave.rewards_RF))
        whole = self._session.plan_rest()
        rest_R = np.repeat(np.arange(len(prompts)), whole.budgets - pilot.budgets)
        if len(rest_R):
            rest = generate_wave(self, [prompts[position] for position in rest_R])
            order_R = np.argsort(np.concatenate([pilot.repeat_index, rest_R]), kind="stable")
            wave = wave.then(rest, order_R)
        return whole, wave

    def _generate(self, prompts: list[Any]) -> Any:
        output = super()._generate(prompts)
        if self._generating:
            _, completions, tool_mask, *_ = output  # the mask is 0 where a tool wrote
            lengths = map(len, completions) if tool_mask is None else map(sum, tool_mask)
            self._length_R = self.accelerator.gather(torch.tensor([*lengths], device=self.accelerator.device))
        return output

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        wave = self._both_waves
        if wave is not None:
            own = self._own_rows(len(prompt_ids))
            return wave.completion_ids[own], None if wave.logprobs is None else wave.logprobs[own]
        if self._generating:
            # A vLLM server is sent every num_generations-th prompt; here each row is a prompt of its own.
            num_generations = 1
        return super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs
        )

    def _calculate_rewards(self, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        wave = self._both_waves
        if wave is not None:
            own = self._own_rows(len(inputs))
            self._pending_extra_logs.update({name: values[own] for name, values in wave.columns.items()})
            self._rewards_RF = wave.rewards_RF
            return self._rewards_RF
        rewards_RF = super()._calculate_rewards(inputs, *args, **kwargs)
        if self._generating:
            self._session.check(self._success(rewards_RF))  # before they reach the model
            self._rewards_RF = rewards_RF
        return rewards_RF

    def _set_advantages(
        self, output: dict[str, Any], allocation: Allocation, rewards_RF: torch.Tensor
    ) -> None:
        """Replace the advantages, in which GRPOTrainer took each num_generations rows for a group."""
        budgets_P = torch.as_tensor(allocation.budgets, device=rewards_RF.device)
        result = group_advantages(
            rewards_RF,
            self.reward_weights.to(rewards_RF.device),
            budgets_P,
            scale_rewards=self.scale_rewards,
            aggregation=self.multi_objective_aggregation,
        )
        values_R, self.last_weights = result.values_R, self._weights(allocation)
        if self.last_weights is not None:
            values_R = values_R * values_R.new_tensor(self.last_weights[allocation.repeat_index])
        output["advantages"] = values_R[self._own_rows(len(output["advantages"]))]
        self._mend_logs(Advantages(values_R, result.is_std_zero_R))

    def _weights(self, allocation: Allocation) -> np.ndarray | None:
        """(P,) factors of the prompts' advantages; None: 1 each."""
        if self.args.per_prompt_weighting:
            return self._mean_budget / allocation.budgets
        return None if self.allocator.mode == "rollouts" else self._session.weigh()

    def _mend_logs(self, result: Advantages) -> None:
        self._metrics["train"]["frac_reward_zero_std"][-1] = result.is_std_zero_R.float().mean().item()
        logged: Any = self._logs["advantages"]
        for _ in range(min(len(result.values_R), len(logged))):
            logged.pop()
        logged.extend(result.values_R.tolist())

    def _success(self, rewards_RF: torch.Tensor) -> np.ndarray:
        return rewards_RF[:, self._success_index].cpu().double().numpy()

    def _record(self, rewards_RF: torch.Tensor) -> None:
        """Feed the outcomes back, in every process the same."""
        length_R = None if self._length_R is None else self._length_R.cpu().numpy()
        self._session.record_all(self._success(rewards_RF), length_R)

    def _finish(self) -> None:
        """Let the allocator observe, in every process the same, and log."""
        records, metrics = self._session.finish(self.state.global_step + 1)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        if self.allocation_log is not None and self.accelerator.is_main_process:
            self.allocation_log(records)

    # --- Length of the training, checkpoints ---

    def _begin(self) -> None:
        forward_passes = self.state.max_steps * self.args.gradient_accumulation_steps
        self._session.begin(max(1, math.ceil(forward_passes / self._passes_per_generation)))

    @property
    def _passes_per_generation(self) -> int:
        """Forward passes that use one generation."""
        return int(self.args.steps_per_generation or 1) * self.num_iterations

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = os.path.join(self._get_output_dir(trial=trial), name)
        try:
            # First, because GRPOTrainer ends with trainer_state.json, which completes the folder, and uploads it.
            if self.args.should_save:
                self._session.save(folder)
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CobaError(
                f"The checkpoint {folder!r} could not be written: {error}. Make room, delete that folder, and resume "
                "from the checkpoint before it."
            ) from error
        # Every process writes a part of the checkpoint; on_save, which follows, may count on all of them.
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        self._begin()
        if self._train_sampler is not None and self.state.epoch is not None:
            # A data loader that skips batches in several processes does not pass set_epoch on to the sampler.
            self._train_sampler.set_epoch(int(self.state.epoch))
        accumulation = self.args.gradient_accumulation_steps
        for message in inside_generation_window(
            self.state.global_step, accumulation, self._passes_per_generation
        ):
            self._warn(message)
        amid_epoch = self.state.epoch is not None and self.state.epoch % 1 != 0
        for message in self._session.load(checkpoint, amid_epoch=amid_epoch):
            self._warn(message)

    def _warn(self, message: str) -> None:
        if self.accelerator.is_main_process:
            warnings.warn(message, stacklevel=3)
