"""Training runs of a 1-layer random model over single characters: a step takes a few hundredths of a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)
from transformers.utils import logging
from trl import GRPOConfig

from coba_rl.hosts.trl import CobaGRPOConfig, CobaGRPOTrainer
from coba_rl.records import AllocationRecord

CHARACTERS = "0123456789+=ab"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{% endfor %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, plus `<pad>` and `<eos>`."""
    vocabulary = {character: i for i, character in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def prompts(count: int) -> Dataset:
    """`count` different prompts."""
    return Dataset.from_dict({"prompt": [f"{i // 10}+{i % 10}=" for i in range(count)]})


def text_of(message: Any) -> str:
    """A prompt or completion as text, plain or chat."""
    return message if isinstance(message, str) else message[-1]["content"]


def varied(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """1.0 where the completion's first character is early in the alphabet; how early depends on the prompt.

    Pass rates of an untrained model spread from 1/14 to 13/14.
    """
    return [
        float(CHARACTERS.find(text_of(completion)[:1]) <= 1 + 2 * (sum(map(ord, text_of(prompt))) % 7))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


@dataclass
class Run:
    """What a training run left behind."""

    trainer: Any
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    generations: list[dict[str, Any]] = field(default_factory=list)
    """Per training generation: advantages, rewards (all functions), prompts and completions as text."""
    records: list[list[AllocationRecord]] = field(default_factory=list)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.trainer.model.named_parameters()}

    @property
    def budgets(self) -> list[dict[Any, int]]:
        return [{record.prompt_id: record.budget for record in step} for step in self.records]


class _Logs(TrainerCallback):
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.run.logs.append(dict(logs))
        if "grad_norm" in logs:
            self.run.losses.append(logs["loss"])
            self.run.grad_norms.append(logs["grad_norm"])


def recording(trainer_class: type, run: Run) -> type:
    """A subclass that writes each training generation into `run`."""

    class Recording(trainer_class):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            training = self.model.training
            output = super()._generate_and_score_completions(inputs)
            if training:
                decode = self.processing_class.batch_decode
                run.generations.append(
                    {
                        "advantages": output["advantages"].clone(),
                        "rewards": self.seen_rewards,
                        "prompts": decode(output["prompt_ids"], skip_special_tokens=True),
                        "completions": decode(output["completion_ids"], skip_special_tokens=True),
                        "allocation": getattr(self, "last_allocation", None),
                        "weights": getattr(self, "last_weights", None),
                        "logged_advantages": list(self._logs["advantages"]),
                        "frac_reward_zero_std": self._metrics["train"]["frac_reward_zero_std"][-1],
                    }
                )
            return output

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self.seen_rewards = super()._calculate_rewards(*args, **kwargs)
            return self.seen_rewards

    return Recording


class Tiny:
    """A folder with a tiny model in it.

    Args:
        folder: Where runs go.
        model_folder: A model made by another `Tiny`; None: make one.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "num_generations": 4,
        "per_device_train_batch_size": 16,
        "max_completion_length": 6,
        "max_steps": 4,
        "seed": 3,
    }

    def __init__(self, folder: Path, model_folder: Path | None = None) -> None:
        logging.disable_progress_bar()
        self.folder = folder
        self.num_runs = 0
        self.tokenizer = make_tokenizer()
        self.model_folder = model_folder or folder / "model"
        if model_folder is None:
            self._make_model()

    def _make_model(self) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
        LlamaForCausalLM(config).save_pretrained(self.model_folder)
        self.tokenizer.save_pretrained(self.model_folder)

    def config(self, config_class: type = CobaGRPOConfig, **options: Any) -> Any:
        self.num_runs += 1
        options.setdefault("output_dir", str(self.folder / f"run-{self.num_runs}"))
        return config_class(**{**self.DEFAULTS, **options})

    def trainer(
        self,
        trainer_class: type = CobaGRPOTrainer,
        *,
        data: Any = None,
        rewards: Any = varied,
        keywords: dict[str, Any] | None = None,
        **options: Any,
    ) -> Run:
        """A trainer that has not been started, and where its history will be written."""
        coba = issubclass(trainer_class, CobaGRPOTrainer)
        run = Run(trainer=None)
        run.trainer = recording(trainer_class, run)(
            model=LlamaForCausalLM.from_pretrained(self.model_folder),
            reward_funcs=rewards,
            args=self.config(CobaGRPOConfig if coba else GRPOConfig, **options),
            train_dataset=prompts(12) if data is None else data,
            processing_class=self.tokenizer,
            callbacks=[_Logs(run)],
            **(keywords or {}),
        )
        run.trainer.remove_callback(PrinterCallback)
        if coba:
            run.trainer.allocation_log = run.records.append
        return run

    def train(
        self, trainer_class: type = CobaGRPOTrainer, *, resume_from: str | None = None, **options: Any
    ) -> Run:
        """A finished training run."""
        run = self.trainer(trainer_class, **options)
        run.trainer.train(resume_from_checkpoint=resume_from)
        return run
