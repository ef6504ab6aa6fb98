"""Held-out problems answered by a trainer's own generation: every process at work, vLLM where it is on.

Array names end in their axes: `_P` problems, `_K` completions of one problem.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import gather_object

from coba_rl.hosts.trl.trainer import CobaGRPOTrainer
from coba_rl.sampling import score_completions
from coba_rl.tasks.base import Problem, Task


def heldout_successes(
    trainer: CobaGRPOTrainer,
    task: Task,
    problems: Sequence[Problem],
    *,
    num_samples: int = 16,
    temperature: float = 1.0,
    top_p: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.float64]:
    """Sample and judge completions with a trainer's current policy; all processes must call it together.

    The same policy, settings and number of processes give the same result (with vLLM, as far as its kernels do), and
    training goes on as if nothing had been measured: random states, metrics and modes are put back.

    Args:
        trainer: Once its model is prepared, which is from `on_train_begin` on.
        task: Its `score` judges.
        problems: P problems, all texts or all chat messages.
        num_samples: Completions of each, K ≥ 1.
        temperature: > 0.
        top_p: Probability mass to sample from, in (0, 1]. No other filter is applied.
        batch_size: Completions a process generates at once, ≥ 1. vLLM gets all of them and makes its own batches.
        seed: Of the sampling.
        progress: Called with the numbers of completions done and wanted in this process after every batch.

    Returns:
        Successes, shape (P, K), the same in every process; NaN where the verifier could not judge.
    """
    own = _share(problems, trainer.accelerator.process_index, trainer.accelerator.num_processes)
    rows = [problem.prompt for problem in own for _ in range(num_samples)]
    if trainer.use_vllm:
        batch_size = max(1, len(rows))
    texts: list[str] = []
    with _sampling(trainer, num_samples, temperature, top_p, seed), _evaluating(trainer):
        for start in range(0, len(rows), batch_size):
            with _seeded(trainer, (seed, start)):
                texts += map(completion_text, trainer._generate(rows[start : start + batch_size])[3])
            if progress is not None:
                progress(len(texts), len(rows))
    groups = [texts[start : start + num_samples] for start in range(0, len(texts), num_samples)]
    successes = gather_object(score_completions(task, own, groups).tolist())
    return np.array(successes[: len(problems)]).reshape(len(problems), num_samples)


def completion_text(completion: str | list[dict[str, Any]]) -> str:
    """What the policy wrote: a text, or the content of the last chat message.

    Example:
        >>> completion_text("4"), completion_text([{"role": "assistant", "content": "4"}])
        ('4', '4')
    """
    return completion if isinstance(completion, str) else completion[-1]["content"]


def engine(trainer: CobaGRPOTrainer) -> str:
    """What the trainer generates with: `vllm colocate`, `vllm server` or `transformers`."""
    return f"vllm {trainer.vllm_mode}" if trainer.use_vllm else "transformers"


def _share(problems: Sequence[Problem], index: int, num_processes: int) -> list[Problem]:
    """The problems of one process: equally many in each, so the last ones may be there twice.

    Example:
        >>> a, b, c = (Problem(name, name, "") for name in "abc")
        >>> [problem.prompt_id for problem in _share([a, b, c], 1, 2)]
        ['c', 'a']
    """
    each = math.ceil(len(problems) / num_processes)
    return [problems[position % len(problems)] for position in range(index * each, (index + 1) * each)]


@contextmanager
def _sampling(
    trainer: CobaGRPOTrainer, num_samples: int, temperature: float, top_p: float, seed: int
) -> Generator[None]:
    """Put the evaluation's settings in the place of the rollouts'."""
    sampler: Any = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
    changes: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    if trainer.use_vllm and trainer.vllm_mode == "server":  # its random state is out of reach
        changes["generation_kwargs"] = {**sampler.generation_kwargs, "seed": seed}
    with _changed(sampler, changes), _changed(trainer, {"num_generations_eval": num_samples}):
        yield


@contextmanager
def _evaluating(trainer: CobaGRPOTrainer) -> Generator[None]:
    """Evaluation mode; what is logged meanwhile is dropped."""
    model: Any = trainer.model
    was_training = model.training
    model.eval()
    kept, trainer._metrics["eval"] = trainer._metrics["eval"], defaultdict(list)
    try:
        yield
    finally:
        trainer._metrics["eval"] = kept
        model.train(was_training)


@contextmanager
def _changed(target: Any, changes: dict[str, Any]) -> Generator[None]:
    before = {name: getattr(target, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


@contextmanager
def _seeded(trainer: CobaGRPOTrainer, seed: tuple[int, ...]) -> Generator[None]:
    """Random numbers of their own, which leave those of training where they are.

    Each process draws others, but for processes that run one vLLM together: they must draw the same.
    """
    accelerator = trainer.accelerator
    together = trainer.vllm_tensor_parallel_size if trainer.use_vllm else 1
    stream = np.random.SeedSequence((*seed, accelerator.process_index // together))
    devices: list[int] = []
    if accelerator.device.type == "cuda":
        several = accelerator.num_processes == 1  # one process may spread its model over all of them
        devices = list(range(torch.cuda.device_count())) if several else [torch.cuda.current_device()]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(stream.generate_state(1, np.uint32)[0]))
        yield
