"""The noisy teachers: their tables, and the batches that they draw."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError
from coba_rl.tasks import EMBEDDED
from coba_rl.tasks.embedded import make_embedded, special_ids
from coba_rl.tasks.prefix_scan import OPERATORS, PrefixScan
from coba_rl.tasks.prefix_scan_teacher import REGIME_SETTINGS, PrefixScanTeacher
from coba_rl.tasks.string_transform import DUE, StringTransform
from coba_rl.tasks.string_transform_teacher import PASS_RATES, StringTransformTeacher
from coba_rl.tasks.warmstart import TEACHERS

MEAN = {"string-transform": PASS_RATES} | {
    "prefix-scan": {regime: settings.pass_rate for regime, settings in REGIME_SETTINGS.items()}
}
REGIMES = [(name, regime) for name in EMBEDDED for regime in make_embedded(name).regimes]
SYMBOLS = PrefixScan.symbols
PAD_ID, EOS_ID = special_ids(SYMBOLS)


@pytest.mark.parametrize("name", EMBEDDED)
def test_unknown_regime_is_refused(name):
    with pytest.raises(ConfigError, match=r"'hrad'.*Did you mean 'hard'"):
        TEACHERS[name].of_regime("hrad", 0)


@pytest.mark.parametrize(("name", "regime"), REGIMES)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_teacher_meets_its_mean_pass_rate_for_every_seed(name, regime, seed):
    rate_M = TEACHERS[name].of_regime(regime, seed).pass_rates(make_embedded(name).train_problems())
    assert rate_M.mean() == pytest.approx(MEAN[name][regime], abs=1e-6)


def test_the_table_of_prefix_scans_teacher():
    teacher = PrefixScanTeacher.of_regime("hard", seed=3)
    np.testing.assert_allclose(teacher.probability_FD.sum(-1), 1)
    assert teacher.probability_FD.min() > 0
    right = teacher.probability_FD[0, 3, 8, 1] * teacher.probability_FD[4, 1, 2, 2]
    problem = replace(PrefixScan().train_problems()[0], prompt="3+8*2=", answer="12")
    assert teacher.pass_rates([problem])[0] == pytest.approx(right)


def test_the_table_of_string_transforms_teacher():
    teacher = StringTransformTeacher.of_regime("hard", seed=3)
    np.testing.assert_allclose(teacher.probability_KDC.sum(-1), 1)
    assert teacher.probability_KDC.min() > 0
    problem = replace(PrefixScan().train_problems()[0], prompt="D2719=", answer="F0827")
    assert teacher.pass_rates([problem])[0] == teacher.probability_KDC[3, 2, 5]
    right = np.take_along_axis(teacher.probability_KDC, DUE[..., None], -1)[..., 0]
    is_mode = teacher.probability_KDC.argmax(-1) == DUE
    assert is_mode[right > 0.5].all()
    assert not is_mode[right < 0.45].any()
    assert np.quantile(right, 0.25) < 0.03 < 0.5 < np.quantile(right, 0.9)


def test_teacher_prefers_a_wrong_digit_on_its_weak_facts_only():
    teacher = PrefixScanTeacher.of_regime("hard", seed=0)
    truth = np.array([[[f(a, b) % 10 for b in range(10)] for a in range(10)] for f in OPERATORS.values()])
    right = np.take_along_axis(teacher.probability_FD, truth[..., None], -1)[..., 0]
    is_mode = teacher.probability_FD.argmax(-1) == truth
    assert is_mode[right > 0.5].all()
    assert not is_mode[right < 0.45].any()
    assert 0.2 < is_mode.mean() < 0.8
    # Operators keep their order of difficulty.
    assert (np.diff(right.mean((1, 2))[[1, 0, 2, 3, 4, 5]]) < 0).all()


def test_batches_hold_the_teachers_distribution_given_its_own_prefix():
    teacher = PrefixScanTeacher.of_regime("heterogeneous", seed=4)
    batch = teacher.draw_batch(np.random.default_rng(4), 64)
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
    teacher = PrefixScanTeacher.of_regime("moderate", seed=1)
    batch = teacher.draw_batch(np.random.default_rng(2), 20_000)
    rows, positions = np.nonzero(batch.target_NLV[..., :10].sum(-1))
    written = np.eye(10)[batch.ids_NL[rows, positions + 1]]
    expected = batch.target_NLV[rows, positions, :10]
    deviation = (written - expected).sum(0) / np.sqrt((expected * (1 - expected)).sum(0))
    assert np.abs(deviation).max() < 5


def test_string_transforms_teacher_follows_the_rule_that_it_names():
    teacher, task = StringTransformTeacher.of_regime("hard", seed=4), StringTransform()
    pad_id, eos_id = special_ids(task.symbols)
    batch = teacher.draw_batch(np.random.default_rng(4), 400)
    lengths, chosen, expected_chosen = set(), np.zeros(16), np.zeros(16)
    for ids, target in zip(batch.ids_NL, batch.target_NLV, strict=True):
        text = "".join(task.symbols[token] for token in ids if token != pad_id)
        prompt, answer = text.split("=")
        string = prompt[1:]
        letter, first, rule = (ord(prompt[0]) - 65, int(string[0]), ord(answer[0]) - 65)
        # The letter under which the rule that was chosen would be the one that is due.
        assert answer == task.answer(f"{chr(65 + (rule - first) % 16)}{string}=")
        lengths.add(len(string))
        expected = np.zeros_like(target)
        expected[len(prompt), 10:26] = teacher.probability_KDC[letter, first]
        expected[np.arange(len(prompt) + 1, len(text) - 1), [int(digit) for digit in answer[1:]]] = 1
        expected[len(text) - 1, eos_id] = 1
        np.testing.assert_allclose(target, expected, rtol=1e-6)
        chosen[rule] += 1
        expected_chosen += teacher.probability_KDC[letter, first]
    assert lengths == set(range(3, 9))
    assert np.abs((chosen - expected_chosen) / np.sqrt(expected_chosen)).max() < 5
