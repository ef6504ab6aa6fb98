"""A session in the hands of a trainer whose rollouts are late, lost, unjudged, repeated and out of order."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coba_rl import STRATEGIES, BudgetAllocator
from coba_rl.hosts.session import BudgetSession
from coba_rl.testing.hosts import FakeTrainer

CHANCES = st.sampled_from([0.0, 0.1, 0.6])
NUM_STEPS = 6
COUNTS = ("rollouts", "missing_rollouts", "late_rollouts", "unjudged_rollouts")
FATES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 99),
        "latest": st.integers(0, 3),
        "lost": CHANCES,
        "unjudged": CHANCES,
        "repeated": CHANCES,
        "pilot": st.sampled_from([0, 2, 4]),
    }
)


def new(strategy: str, fates: dict[str, Any]) -> FakeTrainer:
    fates = dict(fates)
    session = BudgetSession(BudgetAllocator(strategy, bounds=(2, 16), pilot=fates.pop("pilot", 0)))
    session.begin(2 * NUM_STEPS)
    return FakeTrainer(session, **fates)


@given(st.sampled_from([*STRATEGIES]), FATES)
def test_nothing_is_counted_twice_and_nothing_that_came_in_time_is_lost(
    strategy: str, fates: dict[str, Any]
) -> None:
    trainer = new(strategy, fates)
    taken, seen = [], trainer.session.allocator.observe

    def observe(ids: list[int], successes: list[float], in_pilot: list[bool], **_: Any) -> None:
        taken.append(len(ids))
        seen(ids, successes, in_pilot)

    trainer.session.allocator.observe = observe  # type: ignore[method-assign]
    finished = [trainer.step() for _ in range(NUM_STEPS)]
    assert len(taken) == NUM_STEPS  # once a step, however many groups ended
    records = [record for records, _ in finished for record in records]
    open_groups = trainer.session.open_groups
    assert len(records) + len(open_groups) == NUM_STEPS * trainer.BATCH
    total = {name: sum(metrics[f"coba/{name}"] for _, metrics in finished) for name in COUNTS}
    assert sum(record.budget for record in records) == total["rollouts"]
    assert sum(taken) == total["rollouts"] - total["missing_rollouts"]
    assert sum(record.attempts for record in records) == sum(taken) - total["unjudged_rollouts"]
    if not fates["lost"]:
        assert total["missing_rollouts"] == 0
    if not fates["lost"] and not fates["repeated"]:
        assert total["late_rollouts"] == 0


@given(st.sampled_from([*STRATEGIES]), FATES, st.integers(1, NUM_STEPS))
def test_a_checkpoint_at_any_moment_goes_on_as_if_nothing_had_happened(
    strategy: str, fates: dict[str, Any], step: int
) -> None:
    straight = new(strategy, fates)
    for _ in range(step):
        straight.step()
    resumed = copy.copy(straight)
    resumed._arriving = copy.deepcopy(straight._arriving)
    resumed._planned_at = dict(straight._planned_at)
    with tempfile.TemporaryDirectory() as folder:
        straight.session.save(folder)
        resumed.session = new(strategy, fates).session
        assert resumed.session.load(folder) == []
    for _ in range(3):
        first, second = straight.step(), resumed.step()
        assert repr(first) == repr(second)
    assert straight.session.allocator.state_dict() == resumed.session.allocator.state_dict()


def test_estimates_are_as_good_as_those_of_a_trainer_in_step() -> None:
    """Observed once a policy version, what comes late is only older, not noisier."""

    def error(latest: int) -> float:
        errors = []
        for seed in range(8):
            trainer = new("coba", {"seed": seed, "latest": latest, "lost": 0.0, "repeated": 0.3})
            for _ in range(40):
                trainer.step()
            ids = list(range(trainer.NUM_PROMPTS))
            believed = trainer.session.allocator.strategy.pass_rates(ids)
            errors += [(p - i / trainer.NUM_PROMPTS) ** 2 for i, p in zip(ids, believed, strict=True)]
        return math.sqrt(sum(errors) / len(errors))

    in_step, late = error(latest=0), error(latest=3)
    assert late < 1.3 * in_step, f"root mean square error {late:.3f}, in step {in_step:.3f}"
