"""What the lab trains on: both families, their options, graded scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coba_rl.config_file import validated
from coba_rl.errors import ConfigError
from coba_rl.lab.config import LabConfig
from coba_rl.lab.run import LabResult, LabRun

SHORT = {"steps": 2, "prompts_per_step": 8, "train_prompts": 16, "learning_rate": 1e-3}


def short(**changes: Any) -> LabResult:
    return LabRun(LabConfig(**SHORT, **changes)).run()


def test_grpo_learns_the_second_family_and_does_not_exhaust_it() -> None:
    result = LabRun(
        LabConfig(
            task="string-transform", strategy="uniform", learning_rate=6e-4, steps=20, evaluate_every=20
        )
    ).run()
    (_, before), (_, after) = result.curve
    assert before == pytest.approx(0.218, abs=0.01)
    assert before + 0.08 < after < 0.7


def test_prompts_of_one_length_write_equally_long_answers() -> None:
    run = LabRun(LabConfig(**SHORT, task_options={"min_operators": 5, "max_operators": 5}))
    assert {len(problem.answer) for problem in run._problems + run._task.heldout_problems()} == {5}
    assert [step["tokens"] for step in run.run().steps] == pytest.approx([6 * 16 * 8] * 2, rel=0.01)


@pytest.mark.parametrize("task", ["prefix-scan", "string-transform"])
def test_the_truth_of_graded_prompts_is_their_expected_score(task: str) -> None:
    run = LabRun(LabConfig(task=task, task_options={"graded": True}))
    problems = run._problems[:20]
    read = run.policy.read(problems)
    rollouts = read.sample(np.full(20, 300), np.random.default_rng(2))
    rollouts, score_U = run._judge(problems, np.arange(20), rollouts)
    assert len(set(score_U.tolist())) > 4
    found = np.bincount(rollouts.prompt_U, rollouts.count_U * score_U) / 300
    expected = read.graded_scores()
    # Scores within [0, 1] vary by p(1 − p) at most.
    assert (np.abs(found - expected) / (np.sqrt(expected * (1 - expected) / 300) + 1e-3)).max() < 4
    assert (expected >= read.pass_rates()).all()


def test_graded_scores_train_and_heldout_accuracy_stays_exact_match() -> None:
    plain, graded = (short(exact_pass_rates=True, task_options={"graded": given}) for given in (False, True))
    assert graded.curve[0] == plain.curve[0]
    assert graded.before == plain.before
    assert graded.final != plain.final
    assert graded.steps[0]["coba/success_per_rollout"] > plain.steps[0]["coba/success_per_rollout"]
    assert all(step["pass_rate_rmse"] == 0.0 for step in graded.steps)


def test_graded_prompts_may_be_unsolvable_solved_or_lucky() -> None:
    options = {"graded": True}
    for fate, success in (("unsolvable", 0.0), ("solved", 1.0), ("lucky", 1.0)):
        result = short(task_options=options, **{fate: 1.0})
        assert [step["coba/success_per_rollout"] for step in result.steps] == [success] * 2
        assert result.final == result.curve[0][1]  # all rollouts of a prompt score the same


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": "prefix-scam"}, "'task' is 'prefix-scam'"),
        ({"task": "string-transform", "regime": "moderate"}, "unknown regime 'moderate'"),
        ({"task_options": {"min_operator": 5}}, "no option 'min_operator'. did you mean 'min_operators'"),
        ({"task_options": {"min_operators": 9}}, "min_operators=9"),
        ({"task_options": {"graded": 1}}, "graded=1: expected true or false"),
        ({"task_options": {"regime": "hard"}}, "set 'regime' of the run"),
        ({"task_options": {"num_train": 9}}, "set 'train_prompts' of the run"),
        ({"task_options": {"max_operators": 1}}, "512.*exceeds the 600 distinct"),
        ({"regime": "easy"}, "'regime' is 'easy'"),
    ],
)
def test_mistakes_in_the_task_are_found_with_the_configuration(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated(LabConfig, values)
