"""One training run through TRL: checked as a whole, then trained. Imports torch and trl."""

from __future__ import annotations

import gc
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer, PrinterCallback, TrainerCallback

from coba_rl.errors import CobaError, ConfigError, DatasetError
from coba_rl.hosts.session import BudgetSession
from coba_rl.hosts.trl import CobaGRPOTrainer
from coba_rl.hosts.trl.heldout import completion_text
from coba_rl.records import AllocationRecord
from coba_rl.runs.config import RunConfig, check_config, to_toml
from coba_rl.runs.folder import RunFolder
from coba_rl.runs.heldout import HeldoutCallback
from coba_rl.runs.models import be_quiet, check_model
from coba_rl.runs.progress import Progress
from coba_rl.runs.tasks import configured_task, heldout_problems, policy_source, without, without_overlong
from coba_rl.runs.trl_config import make_trl_config
from coba_rl.tasks import Problem, Task


class TrlRun:
    """Everything a run needs, built and checked; then the training.

    Making one loads no weights and writes nothing: it reads the data and the held-out problems, the policy's
    configuration and tokenizer, and builds the reward and TRL's configuration.

    Args:
        config: What to run.
        folder: Where its records and checkpoints go.

    Raises:
        ConfigError: Sections that do not fit together, a model that is not there, or what TRL refuses.
        DatasetError: Data that cannot be read, or too little of it.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        check_config(config)
        be_quiet()
        self._task = configured_task(config.task)
        self._problems = heldout_problems(config.task, self._task)
        self._source = policy_source(config, self._task)
        self._tokenizer = _load_tokenizer(self._source)
        self._dataset = self._make_dataset()
        length = config.training.max_completion_length or self._task.max_completion_length
        self._args = make_trl_config(config, folder.checkpoints, length)
        self._reward = _make_reward(self._task)

    def check(self, resume: bool) -> None:
        """Refuse a folder that `train` could not write, or go on from; nothing in it is changed.

        Args:
            resume: Whether the folder holds a run to go on with.

        Raises:
            ConfigError: The folder already holds a run, or cannot be written.
            StateError: A file of the newest complete checkpoint is damaged, or its allocator state is of another
                version or strategy.
        """
        if not resume:
            self._folder.check_new()
            return
        self._folder.check_last_checkpoint()
        checkpoint = self._folder.last_checkpoint()
        if checkpoint is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the trainer says what has changed
                BudgetSession(self._config.allocation.spec().build()).load(checkpoint)

    def train(self, resume: bool, progress: Progress) -> float:
        """Train to the last step, from the newest complete checkpoint if there is one, and save the policy.

        The trainer loads the weights and places them, as its launcher says.

        Args:
            resume: Whether the folder holds a run to go on with.
            progress: Hears of the training in the main process.

        Returns:
            Seconds of training, without the held-out measurements.

        Raises:
            ConfigError: The folder holds a run or cannot be written, or the weights cannot be loaded.
            StateError: The run to go on with is damaged.
        """
        is_main = self._args.process_index == 0
        if is_main:
            self.check(resume)
        if is_main and resume:
            self._folder.reopen(to_toml(self._config))
        checkpoint, done = self._folder.last_checkpoint(), self._folder.last_step()
        # The trainer would train one more step from a checkpoint of the last one.
        is_trained = checkpoint is not None and done >= self._config.training.steps
        with self._folder.leaving_nothing():
            trainer = self._make_trainer(str(checkpoint) if is_trained else self._source)
        if is_main and not resume:
            self._folder.create(to_toml(self._config))
        shown = progress if is_main else Progress()
        seconds = 0.0 if is_trained else self._train(trainer, checkpoint, done, shown)
        trainer.save_model(str(self._folder.policy))
        del trainer
        leave_process_group()
        return seconds

    def _train(
        self, trainer: CobaGRPOTrainer, checkpoint: Path | None, done: int, progress: Progress
    ) -> float:
        training = self._config.training
        heldout = HeldoutCallback(trainer, self._task, self._problems, self._config, self._folder, progress)
        trainer.add_callback(heldout)
        trainer.add_callback(_RunCallback(self._folder, progress, training.updates_per_step))
        progress.begin(training.steps, done, training.prompts_per_step * training.rollouts_per_prompt)
        start = time.monotonic()
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            progress.end()
        return time.monotonic() - start - heldout.seconds

    def _make_trainer(self, source: str) -> CobaGRPOTrainer:
        try:
            trainer = CobaGRPOTrainer(
                model=source,
                reward_funcs=self._reward,
                args=self._args,
                train_dataset=self._dataset,
                processing_class=self._tokenizer,
            )
        except CobaError:
            raise
        except (ImportError, OSError, TypeError, ValueError) as error:
            raise ConfigError(f"policy.model={source!r} cannot be trained here: {error}") from None
        trainer.remove_callback(PrinterCallback)  # the progress bar shows what matters
        trainer.allocation_log = self._log_allocations
        return trainer

    def _log_allocations(self, records: list[AllocationRecord]) -> None:
        step = (records[0].step - 1) // self._config.training.updates_per_step + 1
        self._folder.log_allocations([replace(record, step=step) for record in records])

    def _make_dataset(self) -> Dataset:
        problems = without(self._task.train_problems(), self._problems)
        self._check_chats([*problems, *self._problems])
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

    def _check_chats(self, problems: list[Problem]) -> None:
        """The tokenizer can write the prompts that are chats."""
        chat = next((problem.prompt for problem in problems if not isinstance(problem.prompt, str)), None)
        if chat is None:
            return
        try:
            self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except (ImportError, TypeError, ValueError, TemplateError) as error:
            raise ConfigError(
                f"policy.model={self._source!r} cannot write prompts that are chats: {error} Take an instruct model, "
                "or put a chat_template.jinja beside the tokenizer."
            ) from None

    def _num_tokens(self, problem: Problem) -> int:
        if isinstance(problem.prompt, str):
            return len(self._tokenizer(problem.prompt)["input_ids"])
        return len(
            self._tokenizer.apply_chat_template(problem.prompt, add_generation_prompt=True, return_dict=False)
        )


class _RunCallback(TrainerCallback):
    """Writes metrics, marks checkpoints complete, and moves the progress bar."""

    def __init__(self, folder: RunFolder, progress: Progress, updates_per_step: int) -> None:
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
        texts = map(completion_text, completions)
        return [task.score(text, truth) for text, truth in zip(texts, answer, strict=True)]

    return correct


def _load_tokenizer(source: str) -> Any:
    """The policy's tokenizer; its configuration is read too, which shows whether there is a model at all."""
    check_model(source)
    try:
        AutoConfig.from_pretrained(source, trust_remote_code=False)
        return AutoTokenizer.from_pretrained(source, padding_side="left", trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"policy.model={source!r} cannot be loaded: {error}") from None
