"""The process that generates: it batches whatever requests are waiting."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import Any

import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from coba_rl.hosts.verl.cpu.sampling import (
    Completion,
    GenerationRequest,
    SamplingParams,
    derive_seed,
    generate,
)

QUIET = 0.02
"""Seconds without a new request after which a batch starts."""
LONGEST_WAIT = 0.5
"""Seconds after which a batch starts even if requests keep coming."""

_Waiting = tuple[GenerationRequest, asyncio.Future]


class GenerationServer:
    """Generates completions with the weights last received; a Ray actor, one a rollout replica.

    A completion depends on `rollout.seed`, the replica, the version of the weights, the prompt, and how many
    times this prompt was asked for at this version: not on the order in which requests arrive.

    Args:
        config: `actor_rollout_ref.rollout`.
        model_config: `actor_rollout_ref.model`.
        replica_rank: Which replica this is; replicas draw different numbers.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        self.config: RolloutConfig = omega_conf_to_dataclass(config)
        self.model_config: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.replica_rank = replica_rank
        self.model = self._build_model()
        self.stop_token_ids = _stop_token_ids(self.model_config)
        self.global_steps: int | None = None
        self._has_weights = self.config.load_format != "dummy"
        self._occurrences: Counter[tuple[int, ...]] = Counter()
        self._waiting: deque[_Waiting] = deque()
        self._busy = asyncio.Lock()  # Held while the model is in use: by a batch, or by new weights.
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._rejecting = False
        self._batcher: asyncio.Task | None = None
        self._stats: Counter[str] = Counter(batches=0, requests=0, tokens=0, seconds=0)

    def _build_model(self) -> Any:
        from transformers import AutoModelForCausalLM

        dtype = PrecisionType.to_dtype(self.config.dtype)
        if self.config.load_format == "dummy":
            model = AutoModelForCausalLM.from_config(self.model_config.hf_config, dtype=dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                self.model_config.local_path, config=self.model_config.hf_config, dtype=dtype
            )
        return model.eval()

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        **multimodal: Any,
    ) -> TokenOutput:
        """Generate one completion, in verl's token-in, token-out form.

        Raises:
            ValueError: If the request asks for something this server does not do.
            RuntimeError: If no weights were received yet.
        """
        if any(
            data is not None and len(data) for data in (image_data, video_data, multimodal.get("audio_data"))
        ):
            raise ValueError(
                "the request holds images, video or audio; the CPU rollout generates from text only"
            )
        if not await self._admitted():
            return TokenOutput(
                token_ids=[], stop_reason="aborted", extra_fields={"global_steps": self.global_steps}
            )
        if not self._has_weights:
            raise RuntimeError("asked to generate before the trainer sent weights; call update_weights first")
        wants_log_probs, request = self._parse(prompt_ids, dict(sampling_params))
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._batcher is None or self._batcher.done():
            self._batcher = asyncio.create_task(self._serve())
        completion: Completion = await future
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if wants_log_probs else None,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def _admitted(self) -> bool:
        """Wait until requests are admitted; False if they are rejected instead."""
        while not (self._rejecting or self._admitting.is_set()):
            await self._admitting.wait()
        return self._admitting.is_set()

    def _parse(self, prompt_ids: list[int], options: dict[str, Any]) -> tuple[bool, GenerationRequest]:
        """Read verl's sampling parameters; every key must be understood."""
        prompt = tuple(int(token) for token in prompt_ids)
        room = (self.config.max_model_len or self.model.config.max_position_embeddings) - len(prompt)
        if room < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves no room in a context of {room + len(prompt)}; "
                "lower data.max_prompt_length or use a model with a longer context"
            )
        lengths = self.config.prompt_length, self.config.response_length
        default = min(lengths[1], sum(lengths) - len(prompt))
        max_tokens = options.pop("max_tokens", options.pop("max_new_tokens", default))
        stop_ids = frozenset(options.pop("stop_token_ids", None) or ())
        if not options.pop("ignore_eos", self.config.ignore_eos):
            stop_ids |= self.stop_token_ids
        wants_log_probs = bool(options.pop("logprobs", False))
        penalty = options.pop("repetition_penalty", 1.0)
        if penalty != 1.0:
            raise ValueError(f"repetition_penalty is {penalty!r}; the CPU rollout supports only 1.0")
        seed = options.pop("seed", None)
        params = SamplingParams(
            max_tokens=max(1, min(max_tokens, room)),
            temperature=options.pop("temperature", 1.0),
            top_k=options.pop("top_k", -1),
            top_p=options.pop("top_p", 1.0),
            stop_token_ids=stop_ids,
        )
        if options:
            raise ValueError(
                f"sampling parameters {sorted(options)} are not supported by the CPU rollout; remove them"
            )
        return wants_log_probs, GenerationRequest(prompt, params, self._seed(prompt, seed))

    def _seed(self, prompt: tuple[int, ...], seed: int | None) -> int:
        if seed is not None:
            return derive_seed(seed, *prompt)
        occurrence = self._occurrences[prompt]
        self._occurrences[prompt] += 1
        version = -1 if self.global_steps is None else self.global_steps
        return derive_seed(self.config.seed, self.replica_rank, version, occurrence, *prompt)

    async def _serve(self) -> None:
        """Generate for the waiting requests, batch after batch, until none waits."""
        while self._waiting:
            await self._gather_more()
            async with self._busy:
                size = min(len(self._waiting), self.config.max_num_seqs)
                batch = [self._waiting.popleft() for _ in range(size)]
                start = time.perf_counter()
                requests = [request for request, _ in batch]
                [outcome] = await asyncio.gather(
                    asyncio.to_thread(generate, self.model, requests), return_exceptions=True
                )
                if not isinstance(outcome, BaseException):
                    self._count(outcome, time.perf_counter() - start)
            _answer([future for _, future in batch], outcome)

    async def _gather_more(self) -> None:
        """Wait while requests keep coming: a batch costs nearly the same for one row as for hundreds."""
        deadline = time.perf_counter() + LONGEST_WAIT
        seen = 0
        while seen < len(self._waiting) < self.config.max_num_seqs and time.perf_counter() < deadline:
            seen = len(self._waiting)
            await asyncio.sleep(QUIET)

    def _count(self, completions: list[Completion], seconds: float) -> None:
        tokens = sum(len(completion.token_ids) for completion in completions)
        self._stats.update(batches=1, requests=len(completions), tokens=tokens, seconds=seconds)

    async def stats(self) -> dict[str, float]:
        """Totals since the start: batches, requests, generated tokens, seconds spent generating."""
        return dict(self._stats)

    async def update_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None = None) -> None:
        """Replace all weights.

        Args:
            weights: Every parameter by name; tied copies may be left out.
            global_steps: The version of the weights: the training step that made them.

        Raises:
            ValueError: If names do not match the model's.
        """
        async with self._busy:
            result = self.model.load_state_dict(weights, strict=False)
            tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
            missing = [name for name in result.missing_keys if name not in tied]
            if missing or result.unexpected_keys:
                raise ValueError(
                    f"weights do not fit {type(self.model).__name__}: missing {missing}, "
                    f"unexpected {result.unexpected_keys}; send all weights under their Hugging Face names"
                )
            self._has_weights = True
            await self.set_global_steps(global_steps)

    async def set_global_steps(self, global_steps: int | None) -> None:
        """Name the version of the weights; prompts are counted afresh."""
        if global_steps != self.global_steps:
            self._occurrences.clear()
        self.global_steps = global_steps

    async def abort_all_requests(self, reject_request: bool = False, **_: Any) -> dict[str, Any]:
        """Stop admitting requests and wait for those already admitted, which are never cut short."""
        self._rejecting = reject_request
        self._admitting.clear()
        await self.wait_for_requests_to_drain()
        return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self) -> None:
        """Admit requests again."""
        self._rejecting = False
        self._admitting.set()

    async def wait_for_requests_to_drain(self) -> None:
        """Return once no admitted request is unfinished."""
        if self._batcher is not None:
            await self._batcher

    async def sleep(self) -> None:
        """Finish what was admitted; weights stay, as memory is not shared with the trainer."""
        await self.wait_for_requests_to_drain()

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing was put to sleep, caches live only as long as their batch, and there is no profiler."""

    wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


def _answer(futures: list[asyncio.Future], outcome: list[Completion] | BaseException) -> None:
    """Hand each caller its completion, or the failure of the batch, lest it wait for ever."""
    for row, future in enumerate(futures):
        if future.done():  # Its caller has gone away.
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome[row])


def _stop_token_ids(model_config: HFModelConfig) -> frozenset[int]:
    """End-of-sequence tokens of the tokenizer, the model and its generation settings."""
    sources = model_config.tokenizer, model_config.hf_config, model_config.generation_config
    found: set[int] = set()
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)
