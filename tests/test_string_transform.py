"""The string-transform task: answers, generated problems, options, and what sets it apart from prefix-scan."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.tasks.base import content_id
from coba_rl.tasks.string_transform import RULES, StringTransform, apply_rules

# Orders and digit maps once more, on text.
ORDERS = (
    lambda text: text,
    lambda text: "".join(reversed(text)),
    lambda text: text[1:] + text[0],
    lambda text: text[-1] + text[:-1],
)
MAPS = ("0123456789", "9876543210", "1234567890", "5678901234")


def oracle(letter: str, string: str) -> str:
    rule = (ord(letter) - ord("A") + int(string[0])) % 16
    return chr(ord("A") + rule) + ORDERS[rule // 4](string).translate(
        str.maketrans("0123456789", MAPS[rule % 4])
    )


@given(letter=st.sampled_from(RULES), string=st.text(alphabet="0123456789", min_size=1, max_size=12))
def test_the_answer_is_the_rule_that_is_due_and_what_it_gives(letter, string):
    assert StringTransform().answer(f"{letter}{string}=") == oracle(letter, string)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("D2719=", "F0827"), ("A0123=", "A0123"), ("P1234=", "A1234"), ("K9052=", "D4507"), ("L0246=", "L7915")],
)
def test_worked_examples(prompt, answer):
    assert StringTransform().answer(prompt) == answer


@pytest.mark.parametrize(
    "prompt", ["", "=", "D=", "D27", "27=", "Q27=", "d27=", "DD27=", "D2a=", "D27==", "D٣="]
)
def test_malformed_prompts_are_refused(prompt):
    with pytest.raises(ValueError, match="Not a string-transform prompt"):
        StringTransform().answer(prompt)


def test_no_two_rules_are_the_same():
    digits = np.random.default_rng(0).integers(0, 10, (20, 8))
    assert (
        len({transformed.tobytes() for transformed in apply_rules(digits).swapaxes(0, 1)}) == len(RULES) == 16
    )


@settings(max_examples=25, deadline=None)
@given(
    num_train=st.integers(1, 60),
    num_heldout=st.integers(0, 40),
    lengths=st.tuples(st.integers(3, 8), st.integers(3, 8)).map(sorted),
    seed=st.integers(0, 2**40),
)
def test_problems_are_distinct_disjoint_and_within_the_options(num_train, num_heldout, lengths, seed):
    low, high = lengths
    task = StringTransform(
        num_train=num_train, num_heldout=num_heldout, min_length=low, max_length=high, seed=seed
    )
    train, heldout = task.train_problems(), task.heldout_problems()
    assert (len(train), len(heldout)) == (num_train, num_heldout)
    assert len({problem.prompt for problem in train + heldout}) == num_train + num_heldout
    for problem in train + heldout:
        prompt = str(problem.prompt)
        assert low <= len(prompt) - 2 <= high
        assert len(problem.answer) == len(prompt) - 1
        assert problem.prompt_id == content_id(prompt)
        assert problem.data_source == "string-transform"
        assert len(prompt) <= task.max_prompt_length
        assert len(problem.answer) + 1 <= task.max_completion_length


def test_default_problems_are_pinned():
    """The shipped policy's published pass rates are over exactly these prompts."""
    task = StringTransform()
    text = "\n".join(str(p.prompt) for p in task.train_problems() + task.heldout_problems())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "78c1855cff6419f8"


def test_lengths_letters_and_digits_are_uniform_and_independent():
    rng = np.random.default_rng(5)
    prompts = [StringTransform().random_prompt(rng) for _ in range(6000)]
    for counts, kinds in (
        (Counter(map(len, prompts)), 6),
        (Counter(prompt[0] for prompt in prompts), 16),
        (Counter("".join(prompt[1:-1] for prompt in prompts)), 10),
        (Counter((len(prompt), prompt[0]) for prompt in prompts), 96),
    ):
        expected = sum(counts.values()) / kinds
        # Five standard deviations of a count.
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
        assert len(counts) == kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regime": "moderate"}, "Unknown regime 'moderate'"),
        ({"min_length": 2}, "min_length=2"),
        ({"min_length": 5, "max_length": 4}, "min_length=5"),
        ({"max_length": 9}, "max_length=9"),
        ({"num_train": 15_900, "num_heldout": 101, "max_length": 3}, "the 16000 distinct"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        StringTransform(**options)
