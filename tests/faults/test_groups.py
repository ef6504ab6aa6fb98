"""Groups of unequal size where a trainer cuts, counts and normalises; seen going wrong elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trl_reference import reference_advantages
from trl_tiny import prompts, varied

from coba_rl.hosts.trl import CobaGRPOTrainer
from coba_rl.hosts.trl.advantages import group_advantages

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("ignore::FutureWarning")]


def test_rollouts_that_belong_to_no_group_are_an_error() -> None:
    """slime #2230: sizes 4, 3, 4 are mistaken for equal ones."""
    for budgets in ([4, 3, 3], [4, 3, 5]):
        with pytest.raises((RuntimeError, IndexError)):
            group_advantages(torch.zeros(11, 1), torch.ones(1), torch.tensor(budgets))


@pytest.mark.parametrize(
    "shape",
    [
        {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 24},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
    ],
    ids=["four updates of 4 rollouts", "eight passes of 2 rollouts"],
)
def test_a_mini_batch_that_cuts_through_a_group_keeps_the_groups_advantages(tiny: Any, shape: Any) -> None:
    """verl #6025: advantages are made before the batch is cut, so it does not matter where it is cut."""
    run = tiny.train(data=prompts(8), min_budget=1, max_budget=12, **{"max_steps": 6, **shape})
    cut = 0
    for generation in run.generations:
        budgets = generation["allocation"].budgets
        cut += int(any(end % 4 for end in np.cumsum(budgets)))
        rewards = generation["rewards"].numpy().astype(float)
        expected = reference_advantages(rewards, np.ones(1), budgets.tolist(), "group", "sum_then_normalize")
        np.testing.assert_allclose(generation["advantages"].numpy(), expected, atol=1e-4, rtol=1e-4)
    assert cut > 0


def test_dead_rows_count_in_the_denominator_of_the_loss(tiny: Any) -> None:
    """TRL #6367: they shrink the update. As documented: the loss is that of `GRPOTrainer`."""
    seen: list[tuple[int, int, int]] = []

    class Watching(CobaGRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            tokens = output["completion_mask"].sum(dim=1)
            live = output["advantages"] != 0
            seen.append((int(output["num_items_in_batch"]), int(tokens.sum()), int(tokens[live].sum())))
            return output

    tiny.train(Watching, data=prompts(8), rewards=varied, loss_type="dapo", max_steps=4)
    assert all(counted == tokens for counted, tokens, _ in seen)
    assert any(live < tokens for _, tokens, live in seen)
