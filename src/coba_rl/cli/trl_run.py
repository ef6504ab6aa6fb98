"""One training run through TRL: task, policy and trainer built from a configuration. Imports torch and trl."""

from __future__ import annotations

import dataclasses
import gc
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback, set_seed
from transformers.utils import logging as transformers_logging

from coba_rl.cli.config import RunConfig
from coba_rl.cli.progress import TrainingProgress, counting
from coba_rl.cli.run_folder import RunFolder
from coba_rl.cli.tasks import heldout_problems, make_task, policy_source, without, without_overlong
from coba_rl.errors import ConfigError, DatasetError, suggestion
from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.hosts.trl.memory import AllocatorMemory
from coba_rl.sampling import sample_completions, score_completions
from coba_rl.tasks.base import Problem, Task


class TrlRun:
    """Builds the trainer, trains, and measures held-out accuracy.

    Args:
        config: What to run.
        folder: Where its records and checkpoints go.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        _be_quiet()
        self._task = make_task(config.task)
        self._heldout = heldout_problems(config.task, self._task)
        source = policy_source(config)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                source, padding_side="left", trust_remote_code=False
            )
            self._model = _load_model(source)
        except (OSError, ValueError) as error:
            raise ConfigError(f"policy.model={source!r} cannot be loaded: {error}") from None

    def measure_heldout(self) -> list[float] | None:
        """Accuracy of each held-out problem: the mean score of its completions; None without such problems."""
        problems = self._heldout
        if not problems:
            return None
        settings = self._config.evaluation
        with counting("held-out completions") as progress:
            completions = sample_completions(
                self._model,
                self._tokenizer,
                problems,
                num_samples=settings.num_samples,
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_new_tokens=self._max_completion_length,
                batch_size=settings.batch_size,
                seed=self._config.training.seed,
                progress=progress,
            )
        # A completion that cannot be judged is no success of the policy's.
        return np.nan_to_num(score_completions(self._task, problems, completions)).mean(axis=1).tolist()

    def check_resume(self) -> None:
        """Refuse a checkpoint that cannot be gone on from, before anything in the folder is changed.

        Raises:
            StateError: A file of the newest complete checkpoint is damaged, or its allocator state is of another
                version or strategy.
        """
        self._folder.check_last_checkpoint()
        checkpoint = self._folder.last_checkpoint()
        if checkpoint is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the trainer says what has changed
                AllocatorMemory(self._config.allocation.make_allocator()).load(checkpoint, {})

    def train(self, done: int) -> None:
        """Train to the last step, from the newest complete checkpoint if there is one.

        Args:
            done: Steps already behind it.
        """
        training = self._config.training
        rollouts = training.prompts_per_step * training.rollouts_per_prompt
        checkpoint = self._folder.last_checkpoint()
        # The trainer would train one more step from a checkpoint of the last one.
        is_trained = checkpoint is not None and self._folder.last_step() >= training.steps
        if is_trained:
            self._model = _load_model(str(checkpoint))
        with TrainingProgress(training.steps, done, rollouts) as progress:
            trainer = self._make_trainer(progress)
            if not is_trained:
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.save_model(str(self._folder.policy))
        self._model = trainer.accelerator.unwrap_model(trainer.model).eval()
        del trainer
        leave_process_group()

    @property
    def _max_completion_length(self) -> int:
        return self._config.training.max_completion_length or self._task.max_completion_length

    def _make_trainer(self, progress: TrainingProgress) -> CobaGRPOTrainer:
        set_seed(self._config.training.seed)
        trainer = CobaGRPOTrainer(
            model=self._model,
            reward_funcs=_make_reward(self._task),
            args=self._trl_config(),
            train_dataset=self._dataset(),
            processing_class=self._tokenizer,
            callbacks=[_RunCallback(self._folder, progress, self._config.training.updates_per_step)],
        )
        trainer.remove_callback(PrinterCallback)  # the progress bar shows what matters
        updates = self._config.training.updates_per_step

        def log(records: list[dict[str, Any]]) -> None:
            step = (records[0]["step"] - 1) // updates + 1
            self._folder.log_allocations([{**record, "step": step} for record in records])

        trainer.allocation_log = log
        return trainer

    def _dataset(self) -> Dataset:
        problems = without(self._task.train_problems(), self._heldout)
        problems = without_overlong(problems, self._config, self._task, self._num_tokens)
        needed = self._config.training.prompts_per_step
        if len(problems) < needed:
            raise DatasetError(
                f"The data has {len(problems)} usable problems, a step takes training.prompts_per_step={needed}. "
                "Lower it, raise training.max_prompt_length, or bring more data."
            )
        return Dataset.from_list(
            [{"prompt": p.prompt, "answer": p.answer, "prompt_id": p.prompt_id} for p in problems]
        )

    def _num_tokens(self, problem: Problem) -> int:
        if isinstance(problem.prompt, str):
            return len(self._tokenizer(problem.prompt)["input_ids"])
        return len(
            self._tokenizer.apply_chat_template(problem.prompt, add_generation_prompt=True, return_dict=False)
        )

    def _trl_config(self) -> CobaGRPOConfig:
        training, allocation = self._config.training, self._config.allocation
        world = int(os.environ.get("WORLD_SIZE", "1"))
        per_update = training.prompts_per_step * training.rollouts_per_prompt // training.updates_per_step
        if per_update % world:
            raise ConfigError(f"The {per_update} rollouts of an update do not divide over {world} processes.")
        micro = training.micro_batch_size or per_update // world
        if (per_update // world) % micro:
            raise ConfigError(
                f"training.micro_batch_size={micro} does not divide the {per_update // world} rollouts that each "
                f"of {world} processes has in an update."
            )
        accumulation = per_update // world // micro
        save_every = training.save_every or max(1, training.steps // 10)
        settings: dict[str, Any] = {
            "output_dir": str(self._folder.checkpoints),
            "max_steps": training.steps * training.updates_per_step,
            "seed": training.seed,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "steps_per_generation": accumulation * training.updates_per_step,
            "num_generations": training.rollouts_per_prompt,
            "learning_rate": training.learning_rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": training.warmup_steps,
            "weight_decay": 0.0,
            "beta": 0.0,
            "loss_type": "dapo",
            "epsilon": training.clip_low,
            "epsilon_high": training.clip_high,
            "temperature": training.temperature,
            "top_p": training.top_p,
            "max_completion_length": self._max_completion_length,
            "strategy": allocation.strategy,
            "min_budget": allocation.min_budget,
            "max_budget": allocation.max_budget,
            "success_threshold": allocation.success_threshold,
            "strategy_options": allocation.options(),
            "save_strategy": "steps",
            "save_steps": save_every * training.updates_per_step,
            "save_total_limit": 2,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
            "gradient_checkpointing": torch.cuda.is_available(),
            "bf16": torch.cuda.is_available(),
            "use_cpu": not torch.cuda.is_available(),
        }
        known = {field.name for field in dataclasses.fields(CobaGRPOConfig)}
        for key in self._config.trl:
            if key not in known:
                raise ConfigError(f"Unknown config key 'trl.{key}'. {suggestion(key, known)}")
        try:
            return CobaGRPOConfig(**{**settings, **self._config.trl})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"TRL refuses the configuration: {error}") from None


class _RunCallback(TrainerCallback):
    """Writes metrics, marks checkpoints complete, and moves the progress bar."""

    def __init__(self, folder: RunFolder, progress: TrainingProgress, updates_per_step: int) -> None:
        self._folder, self._progress, self._updates = folder, progress, updates_per_step

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "coba/budget_mean" not in logs:
            return
        step = (state.global_step - 1) // self._updates + 1
        self._folder.log_metrics({"step": step, **logs})
        self._progress.update(step, logs)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._folder.mark_complete(checkpoint, state.global_step // self._updates)


def leave_process_group() -> None:
    """End the threads that processes talk through: one that is still at work at exit can abort a finished run."""
    gc.collect()  # trainer and wrapped model refer to one another, and hold the group
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _make_reward(task: Task) -> Any:
    def correct(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        return [task.score(text, truth) for text, truth in zip(texts, answer, strict=True)]

    return correct


def _be_quiet() -> None:
    """Leave the terminal to the run's own progress bar and messages."""
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|torch|accelerate)\.")


def _load_model(source: str) -> Any:
    on_gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=False)
    return model.to("cuda" if on_gpu else "cpu")
