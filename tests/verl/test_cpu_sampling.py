"""The CPU rollout's sampler against exact oracles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.hosts.verl.cpu.sampling import (
    GenerationRequest,
    SamplingParams,
    derive_seed,
    generate,
    sample_tokens,
)

# verl and its dependencies warn at import; their warnings are not ours to fix.
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("default")]


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
