"""The tiny policy: tokenizer, checkpoints, exact pass rates, teacher, warm start."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.tasks.policy import (
    EOS_ID,
    PAD_ID,
    SYMBOLS,
    build_model,
    build_tokenizer,
    exact_pass_rates,
    policy_path,
)
from coba_rl.tasks.prefix_scan import OPERATORS, REGIMES, PrefixScan
from coba_rl.tasks.teacher import REGIME_SETTINGS, Teacher
from coba_rl.tasks.warmstart import draw_batch, warmstart

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TASK = PrefixScan()


def load(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def shipped():
    """Model and tokenizer of the hard regime."""
    return load(policy_path("hard"))


@pytest.mark.parametrize("regime", REGIMES)
def test_shipped_checkpoint_is_ordinary_and_small(regime):
    path = policy_path(regime)
    model, tokenizer = load(path)
    assert sum(file.stat().st_size for file in path.iterdir()) < 3_000_000
    assert not list(path.glob("*.py")) + list(path.glob("*.bin")) + list(path.glob("*.pt"))
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer) == len(SYMBOLS) + 2
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (EOS_ID, PAD_ID)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS_ID, PAD_ID)
    assert tokenizer.padding_side == "left"
    generation = model.generation_config
    assert (generation.do_sample, generation.temperature, generation.top_k, generation.top_p) == (
        True,
        1.0,
        0,
        1.0,
    )


@pytest.mark.parametrize("regime", REGIMES)
def test_shipped_policy_starts_where_its_card_says(regime):
    model, tokenizer = load(policy_path(regime))
    rate_M = exact_pass_rates(model, tokenizer, TASK.train_problems())
    heldout = exact_pass_rates(model, tokenizer, TASK.heldout_problems()).mean()
    assert rate_M.mean() == pytest.approx(REGIME_SETTINGS[regime].pass_rate, abs=0.015)
    assert rate_M.min() < 0.001
    assert rate_M.max() > 0.9
    assert np.abs(rate_M - Teacher.of_regime(regime, seed=0).pass_rates(TASK.train_problems())).mean() < 0.02
    card = (policy_path(regime) / "README.md").read_text()
    assert f"| mean pass rate, training prompts | {rate_M.mean():.4f} |" in card
    assert f"| mean pass rate, held-out prompts | {heldout:.4f} |" in card


def test_unknown_regime_is_refused():
    for call in (policy_path, warmstart, lambda name: Teacher.of_regime(name, 0)):
        with pytest.raises(ConfigError, match=r"'moderat'.*Did you mean 'moderate'"):
            call("moderat")


@given(st.text(alphabet=SYMBOLS, max_size=30))
def test_one_character_is_one_token(text):
    tokenizer = build_tokenizer()
    ids = tokenizer(text).input_ids
    assert ids == [SYMBOLS.index(character) for character in text]
    assert tokenizer.decode([PAD_ID, *ids, EOS_ID, PAD_ID], skip_special_tokens=True) == text


def test_tokenizer_survives_saving(shipped):
    fresh, saved = build_tokenizer(), shipped[1]
    assert fresh.get_vocab() == saved.get_vocab()
    prompts = [str(problem.prompt) for problem in TASK.train_problems()[:50]]
    assert fresh(prompts, padding=True).input_ids == saved(prompts, padding=True).input_ids


def test_chat_messages_become_the_plain_prompt(shipped):
    messages = [{"role": "user", "content": "3+8*"}, {"role": "user", "content": "2-5="}]
    text = shipped[1].apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "3+8*2-5="


def test_padding_on_the_left_changes_no_prediction(shipped):
    model, tokenizer = shipped
    batch = tokenizer(["3+8*2-5=", "7>1="], padding=True, return_tensors="pt")
    alone = tokenizer("7>1=", return_tensors="pt")
    positions = (batch.attention_mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        padded = model(**batch, position_ids=positions).logits[1, -1].softmax(-1)
        plain = model(**alone).logits[0, -1].softmax(-1)
    torch.testing.assert_close(padded, plain, rtol=1e-4, atol=1e-5)


def test_pass_rates_agree_with_sampling(shipped):
    model, tokenizer = shipped
    problems, rollouts = TASK.train_problems()[:12], 500
    rate_M = exact_pass_rates(model, tokenizer, problems)
    prompts = tokenizer([str(p.prompt) for p in problems], padding=True, return_tensors="pt")
    successes_M = np.zeros(len(problems))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        output = model.generate(**prompts, num_return_sequences=rollouts)
    completions = tokenizer.batch_decode(output[:, prompts.input_ids.shape[1] :], skip_special_tokens=True)
    for row, completion in enumerate(completions):
        successes_M[row // rollouts] += TASK.score(completion, problems[row // rollouts].answer)
    assert 0 < successes_M.sum() < len(completions)
    # Chernoff's bound: a correct function fails with a probability below 1e-6.
    limit = np.log(2 * (len(problems) + 1) / 1e-6)
    assert (rollouts * bernoulli_divergence(successes_M / rollouts, rate_M)).max() < limit
    assert (
        len(completions) * bernoulli_divergence(successes_M.sum() / len(completions), rate_M.mean()) < limit
    )


def bernoulli_divergence(observed, p):
    """Kullback-Leibler divergence between Bernoulli distributions, nats."""
    observed = np.clip(observed, 1e-12, 1 - 1e-12)
    return observed * np.log(observed / p) + (1 - observed) * np.log((1 - observed) / (1 - p))


def test_pass_rate_is_the_product_of_token_probabilities(shipped):
    model, tokenizer = shipped
    problem = next(p for p in TASK.train_problems() if len(p.answer) == 4)
    ids, expected = tokenizer(problem.prompt).input_ids, 1.0
    for token in [*tokenizer(problem.answer).input_ids, EOS_ID]:
        with torch.no_grad():
            expected *= model(torch.tensor([ids])).logits[0, -1].softmax(-1)[token].item()
        ids.append(token)
    assert exact_pass_rates(model, tokenizer, [problem])[0] == pytest.approx(expected, rel=1e-4)


def test_pass_rates_ignore_batching_and_message_form(shipped):
    model, tokenizer = shipped
    problems = TASK.train_problems()[:37]
    whole = exact_pass_rates(model, tokenizer, problems)
    np.testing.assert_allclose(exact_pass_rates(model, tokenizer, problems, batch_size=5), whole, rtol=1e-4)
    chats = [replace(p, prompt=[{"role": "user", "content": p.prompt}]) for p in problems]
    np.testing.assert_allclose(exact_pass_rates(model, tokenizer, chats), whole, rtol=1e-6)


def test_pass_rates_leave_the_model_as_it_was():
    model, tokenizer = build_model(), build_tokenizer()
    for training in (True, False):
        model.train(training)
        exact_pass_rates(model, tokenizer, TASK.train_problems()[:2])
        assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_pass_rates_of_nothing_and_of_bad_batches():
    model, tokenizer = build_model(), build_tokenizer()
    assert exact_pass_rates(model, tokenizer, []).shape == (0,)
    with pytest.raises(ConfigError, match="batch_size=0"):
        exact_pass_rates(model, tokenizer, [], batch_size=0)


@settings(max_examples=6)
@given(regime=st.sampled_from(REGIMES), seed=st.integers(0, 2**32))
def test_teacher_meets_its_mean_pass_rate_for_every_seed(regime, seed):
    teacher = Teacher.of_regime(regime, seed)
    np.testing.assert_allclose(teacher.probability_FD.sum(-1), 1)
    assert teacher.probability_FD.min() > 0
    rate_M = teacher.pass_rates(TASK.train_problems())
    assert rate_M.mean() == pytest.approx(REGIME_SETTINGS[regime].pass_rate, abs=1e-6)
    right = teacher.probability_FD[0, 3, 8, 1] * teacher.probability_FD[4, 1, 2, 2]
    problem = replace(TASK.train_problems()[0], prompt="3+8*2=", answer="12")
    assert teacher.pass_rates([problem])[0] == pytest.approx(right)


def test_teacher_prefers_a_wrong_digit_on_its_weak_facts_only():
    teacher = Teacher.of_regime("hard", seed=0)
    truth = np.array([[[f(a, b) % 10 for b in range(10)] for a in range(10)] for f in OPERATORS.values()])
    right = np.take_along_axis(teacher.probability_FD, truth[..., None], -1)[..., 0]
    is_mode = teacher.probability_FD.argmax(-1) == truth
    assert is_mode[right > 0.5].all()
    assert not is_mode[right < 0.45].any()
    assert 0.2 < is_mode.mean() < 0.8
    # Operators keep their order of difficulty.
    assert (np.diff(right.mean((1, 2))[[1, 0, 2, 3, 4, 5]]) < 0).all()


def test_batches_hold_the_teachers_distribution_given_its_own_prefix():
    teacher = Teacher.of_regime("heterogeneous", seed=4)
    batch = draw_batch(teacher, np.random.default_rng(4), 64)
    lengths = set()
    for ids, target in zip(batch.ids_NL, batch.target_NLV, strict=True):
        text = "".join(SYMBOLS[token] for token in ids if token != PAD_ID)
        prompt, answer = text.split("=")
        lengths.add(len(answer))
        assert len(prompt) == 2 * len(answer) + 1
        assert len(text) + np.sum(ids == PAD_ID) == len(ids)
        expected = np.zeros_like(target)
        for step, value in enumerate(prompt[0] + answer[:-1]):
            operator, operand = list(OPERATORS).index(prompt[2 * step + 1]), int(prompt[2 * step + 2])
            expected[len(prompt) + step, :10] = teacher.probability_FD[operator, int(value), operand]
        expected[len(text) - 1, EOS_ID] = 1
        np.testing.assert_allclose(target, expected, rtol=1e-6)
    assert lengths == set(range(1, 9))


def test_teacher_writes_digits_as_often_as_its_table_says():
    teacher = Teacher.of_regime("moderate", seed=1)
    batch = draw_batch(teacher, np.random.default_rng(2), 20_000)
    rows, positions = np.nonzero(batch.target_NLV[..., :10].sum(-1))
    written = np.eye(10)[batch.ids_NL[rows, positions + 1]]
    expected = batch.target_NLV[rows, positions, :10]
    deviation = (written - expected).sum(0) / np.sqrt((expected * (1 - expected)).sum(0))
    assert np.abs(deviation).max() < 5


def test_warmstart_repeats_itself_whatever_the_threads_and_the_random_state(tmp_path):
    threads, calls = torch.get_num_threads(), []
    weights = []
    try:
        for folder, count, seed in (("a", 1, 5), ("b", 2, 5), ("c", 1, 6)):
            torch.set_num_threads(count)
            torch.manual_seed(count)
            before = torch.get_rng_state()
            metrics = warmstart(
                "hard",
                seed,
                tmp_path / folder,
                steps=3,
                batch_size=8,
                progress=lambda step, total: calls.append((step, total)),
            )
            assert torch.equal(torch.get_rng_state(), before)
            assert torch.get_num_threads() == count
            weights.append((tmp_path / folder / "model.safetensors").read_bytes())
    finally:
        torch.set_num_threads(threads)
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    assert calls == [(1, 3), (2, 3), (3, 3)] * 3
    model, tokenizer = load(tmp_path / "c")
    reloaded = exact_pass_rates(model, tokenizer, TASK.train_problems()).mean()
    assert reloaded == pytest.approx(metrics["mean_pass_rate"], rel=1e-5)
    assert "--regime hard --seed 6" in (tmp_path / "c" / "README.md").read_text()


def test_warmstart_learns_and_reports_it():
    short = warmstart("moderate", steps=1, batch_size=32)
    longer = warmstart("moderate", steps=60, batch_size=32)
    assert longer["divergence"] < 0.7 * short["divergence"]
    assert longer["mean_pass_rate"] > 10 * short["mean_pass_rate"]
    assert longer["teacher_pass_rate"] == pytest.approx(0.34, abs=1e-6)
    assert 0 <= longer["pass_rate_error"] <= 1


@pytest.mark.parametrize("options", [{"steps": 0}, {"batch_size": 0}])
def test_warmstart_refuses_empty_training(options):
    with pytest.raises(ConfigError, match="expected at least 1"):
        warmstart("hard", **options)
