"""What every estimator of pass rates must satisfy."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from coba_rl.allocation.estimators import PassRateEstimator, Visits, describe_estimator, make_estimator

_NUM_PROMPTS = 40
_BATCH_SIZE = 16
_PROBED = [*range(_NUM_PROMPTS), "never seen"]


class EstimatorConformance(ABC):
    """Tests of one estimator. Subclass it, name the subclass `Test…`, and write `make`.

    Example:
        >>> class TestPosterior(EstimatorConformance):
        ...     def make(self):
        ...         return make_estimator("posterior", decay=0.9)
        >>> TestPosterior().test_estimates_are_probabilities()
    """

    @abstractmethod
    def make(self) -> PassRateEstimator:
        """A new estimator that has seen nothing, with the options to test."""

    # What it is

    def test_options_are_json_and_rebuild_the_estimator(self) -> None:
        description = json.loads(json.dumps(describe_estimator(self.make()), allow_nan=False))
        again = make_estimator(description)
        assert type(again) is type(self.make()), f"{description} makes a {type(again).__name__}"
        assert describe_estimator(again) == description, f"rebuilt from {description} it has other options"

    # Estimates

    def test_estimates_are_probabilities(self) -> None:
        estimator = self.make()
        _check_probabilities(estimator.estimate(_PROBED))
        for visits in _stream(num_steps=12):
            estimator.update(visits)
            _check_probabilities(estimator.estimate(_PROBED))

    def test_what_was_visited_is_seen_and_has_an_estimate(self) -> None:
        estimator = self.make()
        assert not estimator.seen(_PROBED).any(), "a new estimator has seen prompts"
        visits = next(_stream())
        estimator.estimate(_PROBED)
        assert not estimator.seen(_PROBED).any(), "asking for an estimate makes a prompt seen"
        estimator.update(visits)
        expected = [prompt_id in visits.prompt_ids for prompt_id in _PROBED]
        assert estimator.seen(_PROBED).tolist() == expected, "seen are not the prompts that were visited"
        assert not np.isnan(estimator.estimate(visits.prompt_ids)).any(), "a visited prompt has no estimate"

    def test_a_prompt_that_passes_is_believed_above_one_that_fails(self) -> None:
        estimator = self.make()
        for _ in range(6):
            estimator.update(Visits(["fails", "passes"], np.array([1.0, 7.0]), np.array([8.0, 8.0])))
        low, high = estimator.estimate(["fails", "passes"])
        assert low < high, f"1 of 8 passed is read as {low}, 7 of 8 as {high}"

    def test_estimates_do_not_depend_on_what_is_asked_with_them(self) -> None:
        estimator = _taught(self.make())
        together = estimator.estimate(_PROBED)
        alone = np.array([estimator.estimate([prompt_id])[0] for prompt_id in _PROBED])
        assert _close(together, alone), "an estimate depends on the others asked for"
        assert np.array_equal(estimator.estimate(_PROBED), together, equal_nan=True), "asking moves estimates"
        assert estimator.estimate([]).shape == (0,)

    def test_the_order_of_prompts_within_a_step_does_not_matter(self) -> None:
        straight, shuffled = self.make(), self.make()
        for visits in _stream(num_steps=8):
            straight.update(visits)
            order = np.random.default_rng(0).permutation(len(visits.prompt_ids))
            ids = [visits.prompt_ids[i] for i in order]
            shuffled.update(Visits(ids, visits.successes_P[order], visits.attempts_P[order]))
        same = _close(straight.estimate(_PROBED), shuffled.estimate(_PROBED))
        assert same, "another order of the prompts in a step gives other estimates"

    def test_an_interval_holds_the_estimate(self) -> None:
        estimator = _taught(self.make())
        rates = estimator.estimate(_PROBED)
        for level in (0.9, 0.99):
            interval = estimator.interval(_PROBED, level)
            if interval is not None:
                for end in interval:
                    _check_probabilities(end)
                outside = (rates < interval[0]) | (rates > interval[1])
                assert not outside.any(), (
                    f"estimates {rates[outside]} lie outside their {level:.0%} intervals"
                )

    def test_an_estimate_given_outcomes_is_that_after_them_and_leaves_no_trace(self) -> None:
        straight, estimator = self.make(), self.make()
        for visits in _stream(num_steps=8):
            before = json.dumps(_state(estimator))
            given = estimator.estimate_given(_PROBED, visits)
            assert json.dumps(_state(estimator)) == before, "a look at outcomes changed the state"
            straight.update(visits)
            after = straight.estimate(_PROBED)
            assert np.array_equal(given, after, equal_nan=True), (
                "a look at outcomes gives other estimates than they"
            )
            estimator.update(visits)

    # Memory

    def test_a_restart_goes_on_bit_for_bit(self) -> None:
        straight, resumed = _taught(self.make()), self.make()
        _restore(resumed, json.loads(json.dumps(_state(straight), allow_nan=False)))
        for visits in _stream(num_steps=6, seed=1):
            straight.update(visits)
            resumed.update(visits)
        assert np.array_equal(straight.estimate(_PROBED), resumed.estimate(_PROBED), equal_nan=True)
        assert _state(resumed) == _state(straight), "states differ after a restart"

    def test_a_saved_state_is_a_snapshot(self) -> None:
        estimator, other = _taught(self.make()), self.make()
        state = _state(estimator)
        before = json.dumps(state)
        _restore(other, state)
        for one in (estimator, other):
            _taught(one, seed=1)
        assert json.dumps(state) == before, "learning on changed a state that was saved or loaded before"

    def test_nothing_runs_away(self) -> None:
        for share in (lambda step: 0.0, lambda step: 1.0, lambda step: step % 2):
            estimator, rng, sizes = self.make(), np.random.default_rng(0), []
            for step in range(600):
                attempts = rng.integers(1, 100, 4).astype(float)
                estimator.update(Visits([*range(4)], attempts * share(step), attempts))
                if step in (299, 599):
                    sizes.append(len(json.dumps(_state(estimator), allow_nan=False)))
            _check_probabilities(estimator.estimate(_PROBED))
            grown = f"the state grew from {sizes[0]} to {sizes[1]} characters with four prompts"
            assert sizes[1] < 1.5 * sizes[0] + 200, grown


def _stream(num_steps: int = 1, seed: int = 0) -> Any:
    """Visits of random batches of prompts whose true pass rates run from 0 to 1, both included."""
    rng = np.random.default_rng(seed)
    true_rates = np.clip(np.linspace(-0.2, 1.2, _NUM_PROMPTS), 0.0, 1.0)
    for _ in range(num_steps):
        ids = rng.permutation(_NUM_PROMPTS)[:_BATCH_SIZE]
        attempts = rng.integers(1, 20, len(ids))
        passed = rng.binomial(attempts, true_rates[ids])
        yield Visits(ids.tolist(), passed.astype(float), attempts.astype(float))


def _taught(estimator: PassRateEstimator, seed: int = 0) -> PassRateEstimator:
    for visits in _stream(num_steps=8, seed=seed):
        estimator.update(visits)
    return estimator


def _state(estimator: PassRateEstimator) -> dict[str, Any]:
    return {"estimator": estimator.state_dict(), "table": estimator.table.state_dict()}


def _restore(estimator: PassRateEstimator, state: dict[str, Any]) -> None:
    estimator.load_state_dict(state["estimator"])
    estimator.table = estimator.table.restored(state["table"])


def _close(a_P: np.ndarray, b_P: np.ndarray) -> bool:
    """Equal but for rounding, NaN in the same places."""
    return np.allclose(a_P, b_P, rtol=0, atol=1e-9, equal_nan=True)


def _check_probabilities(rates: np.ndarray) -> None:
    outside = (rates < 0.0) | (rates > 1.0)  # NaN, "unknown", is in neither
    assert not outside.any(), f"no probabilities: {rates[outside]}"
    assert rates.ndim == 1, f"estimates have the shape {rates.shape}, expected one a prompt"
