"""Evaluation statistics against enumeration and known distributions; sampling from a tiny random model."""

import json
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.evaluate import (
    Estimate,
    difficulty_classes,
    difficulty_transitions,
    mean_estimate,
    paired_difference,
    pass_at_k,
    summarize,
)
from coba_rl.sampling import sample_completions, score_completions
from coba_rl.tasks.base import Problem
from coba_rl.tasks.prefix_scan import PrefixScan

NAN = float("nan")


# --- avg@k and pass@k ------------------------------------------------------------------------------------------------


@given(st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_success(data):
    attempts = data.draw(st.integers(1, 9))
    successes = data.draw(st.integers(0, attempts))
    k = data.draw(st.integers(1, attempts))
    outcomes = [1] * successes + [0] * (attempts - successes)
    subsets = list(combinations(outcomes, k))
    expected = Fraction(sum(any(subset) for subset in subsets), len(subsets))
    assert pass_at_k([successes], [attempts], k)[0] == pytest.approx(float(expected), abs=1e-12)


def test_pass_at_k_with_different_numbers_of_attempts():
    assert pass_at_k([1, 1, 3], [2, 4, 4], 2) == pytest.approx([1.0, 0.5, 1.0])


def test_pass_at_k_with_more_attempts_than_a_float_has_binomials():
    # Σ over the first success: exact in rationals, and C(5000, 2500) overflows a float.
    expected = 1 - float(np.prod([Fraction(4990 - i, 5000 - i) for i in range(2500)]))
    assert pass_at_k([10], [5000], 2500)[0] == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_without_bias():
    rng = np.random.default_rng(0)
    successes = rng.binomial(8, 0.2, size=40_000)
    assert pass_at_k(successes, 8, 4).mean() == pytest.approx(1 - 0.8**4, abs=0.005)


@pytest.mark.parametrize(
    ("successes", "attempts", "k", "message"),
    [
        ([1], [4], 0, "k=0"),
        ([1], [4], 5, "k=5 with 4 attempts at some prompt.*sample more or lower k"),
        ([1, 1], [9, 4], 5, "k=5 with 4 attempts"),
        ([1], [4], 1.5, "k=1.5"),
        ([5], [4], 1, "0 ≤ successes ≤ attempts"),
        ([-1], [4], 1, "whole numbers"),
        ([0.5], [4], 1, "whole numbers"),
        ([NAN], [4], 1, "whole numbers"),
    ],
)
def test_pass_at_k_refuses(successes, attempts, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(successes, attempts, k)


def test_the_average_weighs_prompts_alike_and_leaves_the_unjudged_out():
    assert summarize([[1, 0, 0, 1]]).avg.value == 0.5
    assert summarize([[1, NAN, NAN, NAN], [0, 0, 0, 0]]).avg.value == 0.5
    assert summarize([[0.25, 0.75], [NAN, NAN]]).avg.value == 0.5


@pytest.mark.parametrize("successes", [[], [[]], [1, 0], [[NAN]], [[2.0]], [[-0.1, 1]], [[np.inf]]])
def test_the_average_refuses(successes):
    with pytest.raises(ValueError, match=r"expected shape \(prompts, attempts\)"):
        summarize(successes)


# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: (rng.random(60) < 0.4).astype(float),
        lambda rng: rng.beta(0.5, 0.5, 60) - 0.1,
        lambda rng: rng.binomial(16, rng.beta(2, 3, 60)) / 16,
    ],
    ids=["yes or no", "two peaks", "sixteen attempts"],
)
def test_intervals_cover_the_mean_of_the_population(draw):
    rng = np.random.default_rng(7)
    mean = 0.4
    estimates = [mean_estimate(draw(rng), seed=trial, num_resamples=400) for trial in range(400)]
    covered = np.mean([estimate.low <= mean <= estimate.high for estimate in estimates])
    # 95 % less the shortfall of the percentile bootstrap at 60 prompts, with three standard errors to each side.
    assert 0.90 <= covered <= 0.98
    spread = np.std([estimate.value for estimate in estimates])
    width = np.mean([estimate.high - estimate.low for estimate in estimates])
    assert width / (2 * 1.96 * spread) == pytest.approx(1, abs=0.12)


def test_intervals_come_from_the_seed_only():
    values = np.random.default_rng(3).random(40)
    assert mean_estimate(values, seed=1) == mean_estimate(values, seed=1)
    assert mean_estimate(values, seed=1) != mean_estimate(values, seed=2)


def test_many_prompts_are_resampled_in_parts(monkeypatch):
    values = np.random.default_rng(3).random(100)
    whole = mean_estimate(values, num_resamples=500)
    monkeypatch.setattr("coba_rl.evaluate._RESAMPLED_VALUES", 1000)
    assert mean_estimate(values, num_resamples=500) == whole


def test_one_prompt_says_nothing_about_the_spread():
    estimate = mean_estimate([0.5])
    assert estimate.as_dict() == {"value": 0.5, "low": None, "high": None}


@pytest.mark.parametrize("values", [[], [[0.5]], [0.5, NAN], [np.inf]])
def test_mean_estimate_refuses(values):
    with pytest.raises(ValueError, match="expected at least one finite value"):
        mean_estimate(values)


def test_pairing_takes_the_common_difficulty_away():
    rng = np.random.default_rng(5)
    difficulty = rng.random(50)
    a, b = difficulty + 0.05 + 0.01 * rng.standard_normal(50), difficulty
    paired = paired_difference(a, b)
    assert 0.04 < paired.low < 0.05 < paired.high < 0.06
    alone = mean_estimate(a)
    assert alone.high - alone.low > 10 * (paired.high - paired.low)
    mirrored = paired_difference(b, a)
    assert mirrored.value == -paired.value


def test_pairs_must_be_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts in both"):
        paired_difference([1, 0], [1])


# --- summary ---------------------------------------------------------------------------------------------------------


def test_summary_of_a_matrix():
    result = summarize([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [NAN] * 4])
    assert (result.num_prompts, result.num_samples, result.num_unjudged) == (3, 4, 4)
    assert result.avg.value == pytest.approx(1.25 / 3)
    assert {k: estimate.value for k, estimate in result.pass_at.items()} == pytest.approx(
        {1: 1.25 / 3, 2: 0.5, 4: 2 / 3}
    )
    report = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert list(report) == [
        "avg@4",
        "pass@1",
        "pass@2",
        "pass@4",
        "num_prompts",
        "num_samples",
        "num_unjudged",
    ]
    assert report["avg@4"]["low"] <= report["avg@4"]["value"] <= report["avg@4"]["high"]


def test_unjudged_attempts_lower_the_largest_k():
    assert list(summarize([[1, 0, NAN, NAN], [1, 1, 1, 0]]).pass_at) == [1, 2]


def test_rounding_neither_refuses_a_success_nor_misses_a_threshold():
    result = summarize(np.array([[1 + 1e-7, -1e-8], [np.float32(0.9), 0.89]]), threshold=0.9)
    assert result.pass_at[1].value == 0.5
    assert summarize([[1 + 1e-7, -1e-8]]).avg.value == 0.5


def test_graded_successes_count_as_solved_from_the_threshold():
    successes = [[0.6, 0.2], [0.5, 0.0]]
    assert summarize(successes, threshold=0.6).pass_at[2].value == 0.5
    assert summarize(successes).pass_at[2].value == 0.0
    assert summarize(successes, threshold=0.6).avg.value == pytest.approx(0.325)


@given(st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=1, max_size=6))
@settings(max_examples=40)
def test_pass_at_1_is_the_average_and_pass_at_k_grows(successes):
    result = summarize(successes)
    values = [estimate.value for estimate in result.pass_at.values()]
    assert values[0] == pytest.approx(result.avg.value)
    assert values == sorted(values)


# --- difficulty ------------------------------------------------------------------------------------------------------


def test_edges_of_the_difficulty_classes():
    rates = [0, 0.01, 0.2, 0.21, 0.79, 0.8, 0.99, 1]
    assert difficulty_classes(rates).tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    assert difficulty_classes([0.1 + 0.1, 1 - 0.2, 0.1 * 8, 0.1 * 3 - 0.1]).tolist() == [1, 3, 3, 1]


RATES = st.integers(1, 16).flatmap(lambda n: st.integers(0, n).map(lambda c: Fraction(c, n)))


def oracle(rate):
    if rate == 0:
        return 0
    if rate <= Fraction(1, 5):
        return 1
    if rate < Fraction(4, 5):
        return 2
    return 3 if rate < 1 else 4


@given(st.lists(st.tuples(RATES, RATES), max_size=20))
def test_transitions_against_exact_fractions(pairs):
    transitions = difficulty_transitions(
        [float(before) for before, _ in pairs], [float(after) for _, after in pairs]
    )
    expected = np.zeros((5, 5), dtype=int)
    for before, after in pairs:
        expected[oracle(before), oracle(after)] += 1
    assert transitions.counts.tolist() == expected.tolist()
    sums = transitions.shares.sum(axis=1)
    empty = expected.sum(axis=1) == 0
    assert np.isnan(sums[empty]).all()
    assert sums[~empty] == pytest.approx(1)


@pytest.mark.parametrize("rates", [[1.1], [-0.1], [NAN]])
def test_transitions_refuse_what_is_no_pass_rate(rates):
    with pytest.raises(ValueError, match=r"expected numbers in \[0, 1\] without NaN"):
        difficulty_transitions(rates, [0.5])


def test_transitions_need_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts"):
        difficulty_transitions([0.5, 0.5], [0.5])


# --- sampling --------------------------------------------------------------------------------------------------------

CHARACTERS = "0123456789+-*@<>="
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=len(CHARACTERS) + 2, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, eos_token_id=1, pad_token_id=0,
            initializer_range=0.5,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
    # What a released model may ship with; an evaluation must not follow it.
    model.generation_config.update(top_k=1, temperature=0.01, repetition_penalty=5.0, do_sample=True)
    return model


PROBLEMS = [Problem(str(i), prompt, "1") for i, prompt in enumerate(["1+2=", "3*4-5+6=", "7="])]


def sample(model, tokenizer, problems=PROBLEMS, num_samples=5, max_new_tokens=8, batch_size=4, **others):
    return sample_completions(
        model,
        tokenizer,
        problems,
        num_samples=num_samples,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        **others,
    )


def test_sampling_comes_from_the_seed_and_leaves_the_rest_alone(model, tokenizer):
    import torch

    model.train()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = sample(model, tokenizer, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    torch.manual_seed(12)
    assert sample(model, tokenizer, seed=1) == first
    assert sample(model, tokenizer, seed=2) != first
    assert [len(texts) for texts in first] == [5, 5, 5]
    assert all(set(text) <= set(CHARACTERS) and len(text) <= 8 for texts in first for text in texts)
    assert len({text for texts in first for text in texts}) > 5, "the shipped top_k=1 is not followed"


def test_padding_changes_no_completion(model, tokenizer):
    together = sample(model, tokenizer, temperature=0, num_samples=1, batch_size=3)
    alone = [sample(model, tokenizer, [problem], temperature=0, num_samples=1)[0] for problem in PROBLEMS]
    assert together == alone


def test_greedy_follows_the_likeliest_token(model, tokenizer):
    import torch

    ids = tokenizer(PROBLEMS[0].prompt)["input_ids"]
    start = len(ids)
    model.eval()
    with torch.no_grad():
        while len(ids) < start + 8 and (len(ids) == start or ids[-1] != 1):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    expected = tokenizer.decode(ids[start:], skip_special_tokens=True)
    assert sample(model, tokenizer, PROBLEMS[:1], temperature=0, num_samples=2) == [[expected, expected]]


def test_samples_follow_the_distribution_of_the_model(model, tokenizer):
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokenizer("7=")["input_ids"]])).logits[0, -1]
    probabilities = logits.double().softmax(0).numpy()
    draws = sample(
        model, tokenizer, PROBLEMS[2:], num_samples=3000, max_new_tokens=1, top_p=1.0, batch_size=1000
    )[0]
    # An end of sequence or padding decodes to nothing.
    observed = [draws.count("") / 3000, *(draws.count(character) / 3000 for character in CHARACTERS)]
    expected = [probabilities[:2].sum(), *probabilities[2:]]
    assert 0.5 * np.abs(np.subtract(observed, expected)).sum() < 0.06
    assert max(expected) < 0.9, "a test that cannot fail otherwise"


def test_chat_messages_go_through_the_template_or_are_joined(model, tokenizer):
    chat = [Problem("c", [{"role": "user", "content": "1+2"}], "1")]
    tokenizer.chat_template = CHAT_TEMPLATE
    try:
        templated = sample(model, tokenizer, chat, temperature=0, num_samples=1)
    finally:
        tokenizer.chat_template = None
    assert templated == sample(model, tokenizer, PROBLEMS[:1], temperature=0, num_samples=1)
    assert [len(texts) for texts in sample(model, tokenizer, chat)] == [5]


def test_progress_and_empty(model, tokenizer):
    calls = []
    sample(model, tokenizer, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(4, 15), (8, 15), (12, 15), (15, 15)]
    assert sample(model, tokenizer, []) == []


@pytest.mark.parametrize(
    "setting",
    [{"num_samples": 0}, {"max_new_tokens": 0}, {"batch_size": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}],
)  # fmt: skip
def test_sampling_refuses(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        sample_completions(None, None, PROBLEMS, **setting)


def test_scores_of_completions():
    class Picky(PrefixScan):
        def score(self, completion, answer):
            return None if completion == "?" else float(completion == answer)

    scores = score_completions(Picky(), PROBLEMS, [["1", "2", "?"], ["1"], []])
    assert np.isnan(scores).tolist() == [[False, False, True], [False, True, True], [True] * 3]
    assert scores[0, :2].tolist() == [1.0, 0.0]
    assert summarize(scores).avg == Estimate(0.75, 0.5, 1.0)
