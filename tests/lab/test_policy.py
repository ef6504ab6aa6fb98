"""The lab's policy is the transformers model that it was loaded from: logits, gradients, pass rates, sampling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from coba_rl.errors import ConfigError
from coba_rl.lab.policy import LabPolicy
from coba_rl.lab.prefix_tree import build_tree
from coba_rl.tasks.policy import build_tokenizer, exact_pass_rates, policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

TASK = PrefixScan(regime="moderate")
SHAPE = {
    "vocab_size": 19, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 64, "initializer_range": 0.3, "eos_token_id": 18, "pad_token_id": 17,
}  # fmt: skip
QWENS = {
    "plain": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "shared keys": {"num_key_value_heads": 2, "tie_word_embeddings": False, "rms_norm_eps": 1e-2},
    "wide heads": {"num_key_value_heads": 3, "head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
}  # fmt: skip


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def qwen2(**changes: object) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**{**SHAPE, **changes}))
    with torch.no_grad():  # biases and norms start at 0 and 1, where mistakes hide
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.fixture(params=[*QWENS, "shipped"])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> LabPolicy:
    shipped = request.param == "shipped"
    folder = policy_path("moderate") if shipped else save(qwen2(**QWENS[request.param]), tmp_path)
    return LabPolicy(folder, TASK.max_completion_length)


def log_probabilities(policy: LabPolicy, prompt: str, completion: tuple[int, ...]) -> torch.Tensor:
    """Of each token of a completion, by transformers."""
    ids = torch.tensor([[*build_tokenizer()(prompt).input_ids, *completion]])
    log_p = policy.model(ids).logits[0, :-1].log_softmax(-1)
    return log_p.gather(1, ids[0, 1:, None])[-len(completion) :, 0]


def test_log_probabilities_and_their_gradient_are_those_of_transformers(policy: LabPolicy) -> None:
    problems = TASK.train_problems()[:20]
    rollouts = policy.read(problems).sample(np.arange(20) % 7, np.random.default_rng(0))
    weight_U = np.random.default_rng(1).normal(size=len(rollouts.completions))
    tree = policy.tree(problems, rollouts)
    ours = (torch.from_numpy(tree.sum_by_edge(weight_U)) * policy.log_probabilities(tree)).sum()
    plain = torch.stack(
        [
            weight * log_probabilities(policy, problems[row].prompt, completion).sum()
            for row, completion, weight in zip(rollouts.prompt_U, rollouts.completions, weight_U, strict=True)
        ]
    ).sum()
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    parameters = list(policy.model.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(plain, parameters), strict=True
    ):
        assert torch.linalg.vector_norm(mine - theirs) <= 1e-5 * torch.linalg.vector_norm(theirs) + 1e-4


def test_pass_rates_are_those_of_transformers(policy: LabPolicy) -> None:
    problems = TASK.train_problems()[:150]  # more than a batch
    exact = exact_pass_rates(policy.model, build_tokenizer(), problems)
    np.testing.assert_allclose(policy.pass_rates(problems), exact, rtol=2e-5)


def test_log_probabilities_of_answers_end_where_the_answers_do(policy: LabPolicy) -> None:
    problems = TASK.train_problems()[:12]
    log_p_PT = policy.read(problems).answer_log_probabilities()
    for problem, found in zip(problems, log_p_PT, strict=True):
        answer = (*build_tokenizer()(problem.answer).input_ids, 18)
        assert np.isnan(found[len(answer) :]).all()
        expected = log_probabilities(policy, problem.prompt, answer).detach()
        np.testing.assert_allclose(found[: len(answer)], expected, atol=2e-5)


def test_samples_are_multinomial_draws_of_the_models_probabilities(policy: LabPolicy) -> None:
    problems = TASK.train_problems()[:9]
    budgets = np.array([3, 0, 40, 1, 7, 2, 16, 5, 9])
    read = policy.read(problems)
    for seed in range(2):  # the second time from the same prompts, as if nothing had been drawn from them
        rollouts = read.sample(budgets, np.random.default_rng(seed))
        counts = dict(
            zip(
                zip(rollouts.prompt_U.tolist(), rollouts.completions, strict=True),
                rollouts.count_U,
                strict=True,
            )
        )
        assert counts == plain_sample(
            policy, [p.prompt for p in problems], budgets, np.random.default_rng(seed)
        )


@torch.no_grad()
def plain_sample(
    policy: LabPolicy, prompts: list[str], budgets: np.ndarray, rng: np.random.Generator
) -> dict[tuple[int, tuple[int, ...]], int]:
    """The same draws, every prefix by a forward pass of its own."""
    prefixes = {(row, ()): n for row, n in enumerate(budgets.tolist())}
    done = {}
    for length in range(1, TASK.max_completion_length + 1):
        logits = [
            policy.model(torch.tensor([[*build_tokenizer()(prompts[row]).input_ids, *path]])).logits[0, -1]
            for row, path in prefixes
        ]
        p = torch.stack(logits).double().softmax(-1).numpy()
        split = rng.multinomial(list(prefixes.values()), p / np.maximum(p.sum(1, keepdims=True), 1.0))
        grown = {
            (row, (*path, token)): int(n)
            for (row, path), ns in zip(prefixes, split, strict=True)
            for token, n in enumerate(ns)
            if n
        }
        ended = {
            key: n for key, n in grown.items() if key[1][-1] == 18 or length == TASK.max_completion_length
        }
        done |= ended
        prefixes = {key: n for key, n in grown.items() if key not in ended}
        if not prefixes:
            break
    return done


@pytest.mark.parametrize(
    "model",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        lambda: qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=1),
        lambda: qwen2(rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}),
    ],
    ids=["llama", "sliding windows", "dynamic rotary embeddings"],
)
def test_other_models_are_refused(model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a Qwen2ForCausalLM"):
        LabPolicy(save(model(), tmp_path), 9)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_holds_every_completion_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, size=rng.integers(1, 5)).tolist() for _ in range(4)]
    prompt_U = np.sort(rng.integers(4, size=12))
    drawn = sorted((int(row), tuple(rng.integers(3, size=rng.integers(1, 5)).tolist())) for row in prompt_U)
    tree = build_tree(prompts, prompt_U, [path for _, path in drawn])
    sequences = {tuple([row, *prompts[row], *path[:-1]][:n]) for row, path in drawn for n in range(2, 99)}
    assert len(tree.token_N) == len(sequences)  # each distinct prefix that is read, once
    visible = tree.visible(slice(0, len(tree.token_N)))
    edges = iter(tree.edge_T)
    for row, path in drawn:
        for length, token in enumerate(path):
            edge = next(edges)
            assert tree.target_E[edge] == token
            seen = tree.token_N[visible[tree.source_E[edge]]].tolist()
            assert seen == [*prompts[row], *path[:length]]
    assert next(edges, None) is None
