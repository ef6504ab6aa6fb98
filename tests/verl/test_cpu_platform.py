"""verl on the CPU: the sampler against exact oracles, the server without Ray, and a real job of verl's trainer."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl", reason="needs the verl environment")

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]

os.environ.setdefault("VERL_PLATFORM", "cpu")  # Read once, when verl is first imported: so before these.

import torch  # noqa: E402

from coba_rl.hosts.verl.cpu.sampling import (  # noqa: E402
    GenerationRequest,
    SamplingParams,
    derive_seed,
    generate,
    sample_tokens,
)

END = "<eos>"


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy, 40 prompts, and a verifier it sometimes satisfies: all that a job reads."""
    import pyarrow
    from pyarrow import parquet

    from coba_rl.tasks.policy import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("verl")
    build_model().save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "prefix-scan",
            "prompt": [{"role": "user", "content": f"{i % 10}+{i // 10}="}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 10)},
            "extra_info": {"index": i},
        }
        for i in range(40)
    ]
    for name, part in (("train", rows[:32]), ("val", rows[32:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"{name}.parquet")
    (folder / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n"
        "    return float(len(solution_str) % 2)\n"
    )
    return folder


@pytest.fixture(scope="session")
def model(job_folder: Path) -> Any:
    """The model in float64, so that rounding never changes which token a uniform number selects."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(job_folder / "model", dtype=torch.float64).eval()


# --------------------------------------------------------------------------- sampling


def filtered_probabilities(logits: list[float], params: SamplingParams) -> list[float]:
    """The distribution a token is drawn from, one step after the other, in plain Python."""
    weights = [math.exp((value - max(logits)) / params.temperature) for value in logits]
    ranked = sorted(range(len(logits)), key=lambda token: -weights[token])
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total, kept, reached = sum(weights[token] for token in ranked), [], 0.0
    for token in ranked:
        if params.top_p < 1 and reached >= params.top_p:
            break
        kept.append(token)
        reached += weights[token] / total
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


sampling_params = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 99]),
    # Not multiples of a rank's probability: at the exact boundary rounding may keep one token more or less.
    top_p=st.sampled_from([0.1234567, 0.5123457, 0.9371234, 1.0]),
)
rows_of_logits = st.lists(
    st.tuples(
        st.lists(st.integers(-40, 40), min_size=7, max_size=7, unique=True),
        sampling_params,
        st.floats(0, 1, exclude_max=True),
    ),
    min_size=1,
    max_size=5,
)


@given(rows_of_logits)
def test_a_token_is_drawn_by_inverting_the_filtered_distribution(rows: list[Any]) -> None:
    logits = [[value / 10 for value in values] for values, _, _ in rows]
    uniforms = torch.tensor([uniform for _, _, uniform in rows], dtype=torch.float64)
    tokens, log_probs = sample_tokens(torch.tensor(logits), [params for _, params, _ in rows], uniforms)
    for row, (_, params, uniform) in enumerate(rows):
        probabilities = filtered_probabilities(torch.tensor(logits)[row].double().tolist(), params)
        below = sum(probabilities[: tokens[row]])
        assert probabilities[tokens[row]] > 0
        assert below - 1e-9 <= uniform <= below + probabilities[tokens[row]] + 1e-9
        assert log_probs[row].item() == pytest.approx(math.log(probabilities[tokens[row]]), abs=1e-6)


def test_evenly_spread_uniforms_give_each_token_its_share() -> None:
    probabilities = [0.5, 0.25, 0.2, 0.05]
    count = 1000
    uniforms = (torch.arange(count).double() + 0.5) / count
    logits = torch.tensor(probabilities).log().expand(count, -1)
    tokens, _ = sample_tokens(logits, [SamplingParams(max_tokens=1)] * count, uniforms)
    assert torch.bincount(tokens).tolist() == [round(p * count) for p in probabilities]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 3))
def test_a_token_of_probability_zero_is_never_drawn(uniform: float, end: int) -> None:
    logits = torch.tensor([[0.0, 0.1, 0.2, 0.3]])
    logits[0, end:] = -torch.inf
    tokens, _ = sample_tokens(logits, [SamplingParams(max_tokens=1)], torch.tensor([uniform]).double())
    assert tokens.item() < end


def test_temperature_zero_takes_the_most_likely_token_in_a_mixed_batch() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]] * 2)
    params = [SamplingParams(max_tokens=1, temperature=0.0), SamplingParams(max_tokens=1, temperature=1.0)]
    tokens, log_probs = sample_tokens(logits, params, torch.zeros(2).double())
    assert tokens.tolist() == [1, 0]
    assert torch.allclose(log_probs, logits[0].double().log_softmax(0)[[1, 0]])


def test_nan_logits_are_an_error() -> None:
    with pytest.raises(ValueError, match="NaN"):
        sample_tokens(
            torch.tensor([[0.0, torch.nan]]), [SamplingParams(max_tokens=1)], torch.zeros(1).double()
        )


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_sampling_parameters_out_of_range_name_themselves(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SamplingParams(**{"max_tokens": 1, **options})


def one_by_one(model: Any, request: GenerationRequest) -> tuple[list[int], list[float]]:
    """Generation without cache, batch or padding."""
    uniforms = np.random.Generator(np.random.Philox(key=request.seed)).random(request.params.max_tokens)
    tokens, log_probs = [], []
    with torch.inference_mode():
        for uniform in torch.from_numpy(uniforms):
            logits = model(torch.tensor([[*request.prompt_ids, *tokens]])).logits[:, -1]
            token, log_prob = sample_tokens(logits, [request.params], uniform[None])
            tokens.append(token.item())
            log_probs.append(log_prob.item())
            if tokens[-1] in request.params.stop_token_ids:
                break
    return tokens, log_probs


requests = st.builds(
    GenerationRequest,
    prompt_ids=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
    params=st.builds(
        SamplingParams,
        max_tokens=st.integers(1, 5),
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        top_k=st.sampled_from([-1, 3]),
        stop_token_ids=st.sampled_from([frozenset(), frozenset(range(0, 19, 3))]),
    ),
    seed=st.integers(0, 2**128 - 1),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(requests, min_size=1, max_size=6))
def test_a_batch_generates_what_each_request_would_get_alone(
    model: Any, batch: list[GenerationRequest]
) -> None:
    completions = generate(model, batch)
    for request, completion in zip(batch, completions, strict=True):
        tokens, log_probs = one_by_one(model, request)
        assert completion.token_ids == tokens
        assert completion.log_probs == pytest.approx(log_probs, abs=1e-9)


def test_nothing_to_generate_is_fine(model: Any) -> None:
    assert generate(model, []) == []


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(ValueError, match="prompt_ids"):
        GenerationRequest((), SamplingParams(max_tokens=1), 0)


@given(st.lists(st.lists(st.integers(), max_size=3).map(tuple), min_size=2, max_size=8, unique=True))
def test_different_parts_give_different_seeds(parts: list[tuple[int, ...]]) -> None:
    assert len({derive_seed(*part) for part in parts}) == len(parts)


# --------------------------------------------------------------------------- server


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


# --------------------------------------------------------------------------- registration


def test_verl_finds_platform_engine_rollout_and_agent_loop() -> None:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.plugin.platform import get_platform
    from verl.utils.device import get_torch_device
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from coba_rl.hosts.verl import cpu

    cpu.register()  # Repeating it changes nothing.
    assert get_platform().device_name == "cpu"
    assert torch.zeros(1).to(get_platform().current_device()).device.type == "cpu"
    assert get_torch_device().max_memory_allocated() > 0
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__ == "CPUEngine"
    assert get_rollout_class("coba_cpu").__name__ == "ServerAdapter"
    assert get_rollout_replica_class("coba_cpu").__name__ == "CPUReplica"
    assert _agent_loop_registry["coba_text"]["_target_"].endswith("TextAgentLoop")


@pytest.mark.parametrize(
    ("strategy", "remove_padding", "remedy"),
    [("fsdp", False, "actor.strategy=fsdp2"), ("fsdp2", True, "use_remove_padding=False")],
)
def test_settings_that_need_a_gpu_name_their_remedy(strategy: str, remove_padding: bool, remedy: str) -> None:
    engine: ModuleType = importlib.import_module("coba_rl.hosts.verl.cpu.engine")
    model_config = SimpleNamespace(use_remove_padding=remove_padding)
    with pytest.raises(ValueError, match=remedy):
        engine.CPUEngine(model_config, SimpleNamespace(strategy=strategy), None, None)


# --------------------------------------------------------------------------- a real job


def run_job(folder: Path, *overrides: str) -> dict[int, dict[str, float]]:
    """Run verl's entry point; the metrics of each training step."""
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo"]
    settings = {
        "hydra.searchpath": "[pkg://coba_rl.hosts.verl.cpu.conf]",
        "+coba": "cpu",
        "hydra.run.dir": folder / "hydra",
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "val.parquet",
        "data.max_prompt_length": 8,
        "data.max_response_length": 4,
        "data.train_batch_size": 8,
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "actor_rollout_ref.actor.optim.lr": 1e-2,
        "actor_rollout_ref.model.path": folder / "model",
        "reward.custom_reward_function.path": folder / "reward.py",
        "trainer.n_gpus_per_node": 2,
        "trainer.val_before_train": False,
        "trainer.save_freq": 1,
        "trainer.test_freq": 1,
        "trainer.default_local_dir": folder / "checkpoints",
    }
    environment = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "coba_rl.hosts.verl.cpu"}
    log = folder / "log.txt"
    with log.open("w") as stream:
        finished = subprocess.run(  # A job that hangs must not hang the tests.
            [*command, *(f"{key}={value}" for key, value in settings.items()), *overrides],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
    text = log.read_text()
    assert finished.returncode == 0, text[-4000:]
    number = r"(-?[\d.]+(?:e[+-]?\d+)?)"
    return {
        int(step): {
            name: float(value) for name, value in re.findall(rf" ([\w/@-]+):(?:np\.\w+\()?{number}", line)
        }
        for step, line in re.findall(r"step:(\d+) -(.*)", text)
    }


@pytest.mark.timeout(700)
def test_a_job_trains_validates_saves_and_resumes_on_two_workers(job_folder: Path) -> None:
    first = run_job(job_folder, "trainer.total_training_steps=2")
    assert sorted(first) == [1, 2]
    for metrics in first.values():
        # Rollout and trainer agree on the probabilities: the weights arrived, and sampling reports what it drew.
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert metrics["actor/grad_norm"] > 0
        assert "val-core/prefix-scan/acc/mean@1" in metrics
    assert first[2]["training/rollout_probs_diff_mean"] < 1e-6
    checkpoint = job_folder / "checkpoints" / "global_step_2"
    assert len(list((checkpoint / "actor").glob("model_world_size_2_rank_*.pt"))) == 2
    assert (
        json.loads((checkpoint / "actor" / "huggingface" / "config.json").read_text())["model_type"]
        == "qwen2"
    )
    resumed = run_job(job_folder, "trainer.total_training_steps=3")
    assert sorted(resumed) == [3]
    assert resumed[3]["training/rollout_probs_diff_max"] < 1e-4
