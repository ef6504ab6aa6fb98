"""The CPU rollout's server without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

END = "<eos>"

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


def make_server(job_folder: Path, **options: Any) -> Any:
    """A server without Ray, with the model's weights as version 0."""
    from verl.workers.config import HFModelConfig, RolloutConfig

    from coba_rl.hosts.verl.cpu.server import GenerationServer

    rollout = {
        "name": "coba_cpu",
        "dtype": "float32",
        "prompt_length": 8,
        "response_length": 6,
        "load_format": "auto",
    }
    config = RolloutConfig(**{**rollout, **options})
    overrides = {"attn_implementation": "sdpa"}
    server = GenerationServer(
        config, HFModelConfig(path=str(job_folder / "model"), override_config=overrides), 0
    )
    asyncio.run(server.set_global_steps(0))
    return server


def ask(server: Any, prompts: list[list[int]], **options: Any) -> list[Any]:
    """Send all prompts at once."""

    async def send() -> list[Any]:
        params = {"temperature": 1.0, "logprobs": True, "repetition_penalty": 1.0, **options}
        return await asyncio.gather(
            *[server.generate(prompt, dict(params), str(i)) for i, prompt in enumerate(prompts)]
        )

    return asyncio.run(send())


def outcome(prompts: list[list[int]], outputs: list[Any]) -> list[Any]:
    """Completions of each prompt, whatever the order they were asked in."""
    return sorted((prompt, output.token_ids) for prompt, output in zip(prompts, outputs, strict=True))


def test_completions_do_not_depend_on_the_order_of_requests(job_folder: Path) -> None:
    prompts = [[1, 2], [3], [1, 2], [1, 2], [3]]
    first = ask(make_server(job_folder), prompts)
    second = ask(make_server(job_folder, max_num_seqs=2), prompts[::-1])
    assert outcome(prompts, first) == outcome(prompts[::-1], second)
    assert (
        len({tuple(first[i].token_ids) for i in (0, 2, 3)}) == 3
    )  # Equal prompts get different completions.


def test_completions_depend_on_seed_version_and_replica(job_folder: Path) -> None:
    seen = []
    for seed, version, replica in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)):
        server = make_server(job_folder, seed=seed)
        server.replica_rank = replica
        asyncio.run(server.set_global_steps(version))
        seen.append(tuple(ask(server, [[1, 2]])[0].token_ids))
    assert len(set(seen)) == 4


def test_output_has_the_form_verl_expects(job_folder: Path) -> None:
    server = make_server(job_folder)
    [output] = ask(server, [[1, 2]], ignore_eos=True)
    assert len(output.token_ids) == len(output.log_probs) == 6
    assert (output.stop_reason, output.extra_fields) == ("completed", {"global_steps": 0})
    assert ask(server, [[1, 2]], logprobs=False)[0].log_probs is None
    assert len(ask(server, [[1, 2]], max_tokens=3, ignore_eos=True)[0].token_ids) == 3
    assert len(ask(server, [[1] * 62], max_tokens=9, ignore_eos=True)[0].token_ids) == 2  # Of 64 positions.
    first, second = ask(server, [[5], [5]], seed=7)
    assert first.token_ids == second.token_ids


def test_generation_ends_with_the_end_token(job_folder: Path) -> None:
    server = make_server(job_folder)
    everything = list(range(server.model.config.vocab_size))
    [output] = ask(server, [[1, 2]], stop_token_ids=everything)
    assert len(output.token_ids) == 1
    assert server.stop_token_ids == {server.model_config.tokenizer.convert_tokens_to_ids(END)}


def test_what_the_server_cannot_do_is_an_error(job_folder: Path) -> None:
    server = make_server(job_folder)
    with pytest.raises(ValueError, match=r"\['min_p'\] are not supported"):
        ask(server, [[1]], min_p=0.1)
    with pytest.raises(ValueError, match=r"repetition_penalty is 1\.2"):
        ask(server, [[1]], repetition_penalty=1.2)
    with pytest.raises(ValueError, match="no room"):
        ask(server, [[1] * 64])
    with pytest.raises(ValueError, match="images"):
        asyncio.run(server.generate([1], {}, "0", image_data=[object()]))


def test_new_weights_are_used_and_must_fit(job_folder: Path) -> None:
    server = make_server(job_folder, load_format="dummy")
    with pytest.raises(RuntimeError, match="weights"):
        ask(server, [[1]])
    weights = make_server(job_folder).model.state_dict()
    with pytest.raises(ValueError, match=r"unexpected \['nonsense'\]"):
        asyncio.run(server.update_weights({"nonsense": torch.zeros(1), **weights}, 0))
    with pytest.raises(ValueError, match=r"missing \['model.norm.weight'\]"):
        asyncio.run(server.update_weights({k: v for k, v in weights.items() if k != "model.norm.weight"}, 0))
    asyncio.run(server.update_weights(weights, 0))
    prompts = [[1, 2], [3]]
    assert outcome(prompts, ask(server, prompts)) == outcome(prompts, ask(make_server(job_folder), prompts))


def test_a_failing_batch_fails_every_caller(job_folder: Path) -> None:
    server = make_server(job_folder)
    torch.nn.init.constant_(server.model.model.norm.weight, torch.nan)

    async def send() -> list[Any]:
        calls = [server.generate([1], {"temperature": 1.0}, str(i)) for i in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in asyncio.run(send())] == [ValueError] * 3


def test_requests_wait_while_generation_is_paused(job_folder: Path) -> None:
    server = make_server(job_folder)

    async def pause() -> tuple[Any, bool, Any]:
        await server.abort_all_requests(reject_request=True)
        rejected = await server.generate([1], {}, "0")
        await server.abort_all_requests()
        parked = asyncio.create_task(server.generate([1], {}, "1"))
        await asyncio.sleep(0)
        waited = not parked.done()
        await server.resume_generation()
        return rejected, waited, await parked

    rejected, waited, answered = asyncio.run(pause())
    assert (rejected.stop_reason, rejected.token_ids) == ("aborted", [])
    assert waited
    assert answered.token_ids
