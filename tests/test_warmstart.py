"""The tiny policies: tokenizer, checkpoints, exact pass rates, teacher, warm start."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.tasks import EMBEDDED
from coba_rl.tasks.embedded import make_embedded, special_ids
from coba_rl.tasks.policy import build_model, build_tokenizer, exact_pass_rates, policy_path
from coba_rl.tasks.prefix_scan import PrefixScan
from coba_rl.tasks.string_transform import StringTransform
from coba_rl.tasks.warmstart import TEACHERS, warmstart

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TASK = PrefixScan()
SYMBOLS = TASK.symbols
PAD_ID, EOS_ID = special_ids(SYMBOLS)
POLICIES = [(name, regime) for name in EMBEDDED for regime in make_embedded(name).regimes]


def load(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def shipped():
    """Model and tokenizer of the hard regime."""
    return load(policy_path("hard"))


@pytest.mark.parametrize(("name", "regime"), POLICIES)
def test_shipped_checkpoint_is_ordinary_and_small(name, regime):
    path = policy_path(regime, name)
    pad_id, eos_id = special_ids(make_embedded(name).symbols)
    model, tokenizer = load(path)
    assert sum(file.stat().st_size for file in path.iterdir()) < 3_000_000
    assert not list(path.glob("*.py")) + list(path.glob("*.bin")) + list(path.glob("*.pt"))
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer) == eos_id + 1
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (eos_id, pad_id)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (eos_id, pad_id)
    assert tokenizer.padding_side == "left"
    generation = model.generation_config
    assert (generation.do_sample, generation.temperature, generation.top_k, generation.top_p) == (
        True,
        1.0,
        0,
        1.0,
    )


@pytest.mark.parametrize(("name", "regime"), POLICIES)
def test_shipped_policy_starts_where_its_card_says(name, regime):
    task, (model, tokenizer) = make_embedded(name), load(policy_path(regime, name))
    rate_M = exact_pass_rates(model, tokenizer, task.train_problems())
    heldout = exact_pass_rates(model, tokenizer, task.heldout_problems()).mean()
    assert rate_M.min() < 0.002
    assert rate_M.max() > 0.9
    teacher_M = TEACHERS[name].of_regime(regime, seed=0).pass_rates(task.train_problems())
    assert rate_M.mean() == pytest.approx(teacher_M.mean(), abs=0.015)
    assert np.abs(rate_M - teacher_M).mean() < 0.02
    card = (policy_path(regime, name) / "README.md").read_text()
    assert f"`coba-rl warmstart --task {name} --regime {regime} --seed 0 --output-dir DIR`" in card
    assert f"| mean pass rate, training prompts | {rate_M.mean():.4f} |" in card
    assert f"| mean pass rate, held-out prompts | {heldout:.4f} |" in card


@pytest.mark.parametrize("num_train", [512, 1024])
def test_length_says_nothing_of_a_string_transforms_pass_rate(num_train):
    problems = StringTransform(num_train=num_train).train_problems()
    rate_M = exact_pass_rates(*load(policy_path("hard", "string-transform")), problems)
    assert abs(np.corrcoef(rate_M, [len(problem.answer) for problem in problems])[0, 1]) < 0.1
    # Prompts from hopeless to easy, and many between.
    assert np.quantile(rate_M, 0.3) < 0.02
    assert np.quantile(rate_M, 0.95) > 0.75
    assert np.mean((rate_M > 0.05) & (rate_M < 0.8)) > 0.4


def test_unknown_regime_is_refused():
    for call in (policy_path, warmstart):
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


@pytest.mark.parametrize(
    ("name", "regime", "mean"), [("prefix-scan", "moderate", 0.34), ("string-transform", "hard", 0.2)]
)
def test_warmstart_learns_and_reports_it(name, regime, mean):
    short = warmstart(regime, task=name, steps=1, batch_size=32)
    longer = warmstart(regime, task=name, steps=60, batch_size=32)
    assert longer["divergence"] < 0.7 * short["divergence"]
    assert longer["mean_pass_rate"] > 10 * short["mean_pass_rate"]
    assert longer["teacher_pass_rate"] == pytest.approx(mean, abs=1e-6)
    assert 0 <= longer["pass_rate_error"] <= 1


@pytest.mark.parametrize("options", [{"steps": 0}, {"batch_size": 0}])
def test_warmstart_refuses_empty_training(options):
    with pytest.raises(ConfigError, match="expected at least 1"):
        warmstart("hard", **options)
