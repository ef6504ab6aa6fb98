"""The prefix-scan task: answers, generated problems, options, verifier."""

import hashlib
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.tasks.base import content_id
from coba_rl.tasks.prefix_scan import OPERATORS, PrefixScan, running_values

# The operators once more, by last decimal digits instead of remainders.
ORACLE = {
    "+": lambda a, b: int(str(a + b)[-1]),
    ">": lambda a, b: a if a > b else b,
    "<": lambda a, b: a if a < b else b,
    "-": lambda a, b: int(str(10 + a - b)[-1]),
    "*": lambda a, b: int(str(a * b)[-1]),
    "@": lambda a, b: int(str(a + b + b + 1)[-1]),
}

digit = st.integers(0, 9)


@given(
    first=digit,
    steps=st.lists(st.tuples(st.sampled_from(sorted(ORACLE)), digit), min_size=1, max_size=12),
)
def test_answer_is_every_running_value(first, steps):
    prompt, value, answer = str(first), first, ""
    for operator, operand in steps:
        prompt += f"{operator}{operand}"
        value = ORACLE[operator](value, operand)
        answer += str(value)
    assert running_values(prompt + "=") == answer


@pytest.mark.parametrize(
    ("prompt", "answer"), [("3+8*2-5=", "127"), ("0-1=", "9"), ("7>7<9@9=", "776"), ("9*9=", "1")]
)
def test_worked_examples(prompt, answer):
    assert running_values(prompt) == answer


@pytest.mark.parametrize(
    "prompt", ["", "=", "3=", "3+8", "3+=", "+8=", "33+8=", "3/8=", "3+8==", "3+8= ", "٣+8="]
)
def test_malformed_prompts_are_refused(prompt):
    with pytest.raises(ValueError, match="Not a prefix-scan prompt"):
        running_values(prompt)


@settings(max_examples=25, deadline=None)
@given(
    num_train=st.integers(1, 60),
    num_heldout=st.integers(0, 40),
    lengths=st.tuples(st.integers(1, 8), st.integers(1, 8)).map(sorted),
    seed=st.integers(0, 2**40),
)
def test_problems_are_distinct_disjoint_and_within_the_options(num_train, num_heldout, lengths, seed):
    low, high = lengths
    task = PrefixScan(
        num_train=num_train, num_heldout=num_heldout, min_operators=low, max_operators=high, seed=seed
    )
    train, heldout = task.train_problems(), task.heldout_problems()
    assert (len(train), len(heldout)) == (num_train, num_heldout)
    prompts = [str(problem.prompt) for problem in train + heldout]
    assert len(set(prompts)) == len(prompts)
    for problem in train + heldout:
        assert low <= len(problem.answer) <= high
        assert problem.prompt_id == content_id(problem.prompt)
        assert problem.answer == running_values(problem.prompt)
        assert problem.data_source == "prefix-scan"
        assert len(problem.prompt) <= task.max_prompt_length
        assert len(problem.answer) + 1 <= task.max_completion_length
    assert train == task.train_problems()


def test_heldout_ignores_the_training_set_and_a_larger_training_set_appends():
    small, large = PrefixScan(num_train=50, num_heldout=100), PrefixScan(num_train=400, num_heldout=100)
    assert small.heldout_problems() == large.heldout_problems()
    assert large.train_problems()[:50] == small.train_problems()


def test_seeds_give_other_problems_and_regimes_the_same():
    base = PrefixScan(num_train=64).train_problems()
    assert PrefixScan(num_train=64, seed=1).train_problems() != base
    assert all(
        PrefixScan(regime=regime, num_train=64).train_problems() == base for regime in PrefixScan.regimes
    )


def test_default_problems_are_pinned():
    """The shipped policies' published pass rates are over exactly these prompts."""
    task = PrefixScan()
    text = "\n".join(str(p.prompt) for p in task.train_problems() + task.heldout_problems())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "b0aa6a0c3e56beef"


def test_lengths_operators_and_digits_are_uniform():
    rng = np.random.default_rng(5)
    prompts = [PrefixScan().random_prompt(rng) for _ in range(4000)]
    lengths = Counter(len(prompt) // 2 - 1 for prompt in prompts)
    operators = Counter("".join(prompt[1:-1:2] for prompt in prompts))
    digits = Counter("".join(prompt[:-1:2] for prompt in prompts))
    assert set(operators) == set(OPERATORS)
    for counts, kinds in ((lengths, 8), (operators, 6), (digits, 10)):
        expected = sum(counts.values()) / kinds
        # Five standard deviations of a count.
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
        assert len(counts) == kinds


def test_every_distinct_prompt_can_be_drawn():
    task = PrefixScan(num_train=500, num_heldout=100, max_operators=1)
    prompts = {p.prompt for p in task.train_problems() + task.heldout_problems()}
    assert prompts == {f"{a}{operator}{b}=" for a in range(10) for b in range(10) for operator in OPERATORS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "hrad"}, "Did you mean 'hard'"),
        ({"num_train": 0}, "num_train=0"),
        ({"num_train": 2.5}, "num_train=2.5"),
        ({"num_heldout": -1}, "num_heldout=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"min_operators": 0}, "min_operators=0"),
        ({"min_operators": 5, "max_operators": 4}, "min_operators=5"),
        ({"max_operators": 9}, "max_operators=9"),
        ({"num_train": 500, "num_heldout": 101, "max_operators": 1}, "600 distinct"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PrefixScan(**options)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("127", 1.0),
        (" 127\n", 1.0),
        ("", 0.0),
        ("12", 0.0),
        ("1277", 0.0),
        ("1 27", 0.0),
        ("128", 0.0),
        ("127=", 0.0),
    ],
)
def test_score_is_exact_match(completion, score):
    assert PrefixScan().score(completion, "127") == score


@pytest.mark.parametrize(
    ("completion", "score"),
    [("127", 1.0), ("", 0.0), ("1", 0.25), ("12", 0.5), ("128", 0.5), ("1277", 0.75), ("927", 0.0), ("127…", 0.75)],
)  # fmt: skip
def test_a_graded_score_is_the_share_before_the_first_error(completion, score):
    """The end counts as one part: of 1, 2, 7 and the end, `12` has two right and `1277` three."""
    assert PrefixScan(graded=True).score(completion, "127") == score


def test_modules_import_without_torch():
    modules = "prefix_scan, string_transform, policy, warmstart"
    code = f"import sys; from coba_rl.tasks import {modules}; print({{'torch', 'transformers'}} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "set()"
