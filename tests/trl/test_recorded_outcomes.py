"""Fed recorded outcomes, the trainer gives the budgets that the plain allocator gave: the verl host's test has the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

pytestmark = pytest.mark.trl

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "host_outcomes.json").read_text())


@pytest.mark.parametrize("number", range(len(RECORDED["cases"])))
def test_budgets_follow_the_recorded_outcomes(tiny: Any, number: int) -> None:
    case = RECORDED["cases"][number]
    steps, mean = case["steps"], RECORDED["mean_budget"]
    low, high = RECORDED["bounds"]
    rows = [(prompt_id, step) for step in range(len(steps)) for prompt_id in steps[step]["prompt_ids"]]

    def recorded(step: list[int], **_: Any) -> list[float]:
        return [float(success) for group in steps[step[0]]["successes"] for success in group]

    run = tiny.train(
        data=Dataset.from_dict(
            {
                "prompt": [f"{i % 10}+{i // 10 % 10}=" for i in range(len(rows))],
                "prompt_id": [prompt_id for prompt_id, _ in rows],
                "step": [step for _, step in rows],
            }
        ),
        rewards=recorded,
        strategy=case["strategy"],
        min_budget=low,
        max_budget=high,
        num_generations=mean,
        per_device_train_batch_size=mean * len(steps[0]["prompt_ids"]),
        gradient_accumulation_steps=1,
        max_steps=len(steps),
        shuffle_dataset=False,
        strategy_options=case["options"],
    )
    given = [generation["allocation"].budgets.tolist() for generation in run.generations]
    assert given == [step["budgets"] for step in steps]
