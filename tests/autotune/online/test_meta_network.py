"""The meta-network: deterministic, not usable before training, and better with measured cases."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.torch import save

from autotune.online.features import CANDIDATE_FEATURES, FEATURES_VERSION, WINDOW_FEATURES, FeatureTable
from autotune.online.learning import Batch, Case, Memory, pretrain
from autotune.online.meta_network import CARD, SHIPPED, GainEstimate, MetaNetwork, features_card
from autotune.workloads.errors import SpecError
from tests.autotune.online.jobs import make_candidates, make_simulated, seen
from tests.autotune.simulate.test_closed_forms import MB

WEIGHTS = files("autotune.online") / "weights"


def features_of(speed=1 * MB, running=0):
    """The features of a window and of all candidates, and the simulated gains."""
    found = make_candidates()
    plan = found.plans[running]
    simulator = make_simulated(speed)
    step_s = np.array([simulator.step_s(candidate) for candidate in found.plans])
    observed = seen(plan, speed)
    return *FeatureTable(found.plans, observed.priors).features(observed), np.log(step_s[running] / step_s)


def test_predictions_are_deterministic():
    window, rows, _ = features_of()
    for make in (MetaNetwork.shipped, lambda: MetaNetwork.cold(3)):
        first, second = make().predict(window, rows), make().predict(window, rows)
        assert np.array_equal(first.mean, second.mean)
        assert np.array_equal(first.spread, second.spread)


def test_a_prediction_does_not_depend_on_the_other_candidates():
    window, rows, _ = features_of()
    network = MetaNetwork.shipped()
    assert network.predict(window, rows).mean[5:6] == pytest.approx(network.predict(window, rows[5:6]).mean, abs=1e-5)


def test_an_untrained_network_is_not_usable():
    window, rows, _ = features_of()
    estimate = MetaNetwork.cold(0).predict(window, rows)
    assert not any(estimate.is_usable(index) for index in range(len(rows)))
    assert estimate.pick(running=4, default=0) == 0


def test_an_uncertain_gain_is_not_picked():
    mean, spread = np.array([0.0, 0.0, 0.10, 0.20]), np.array([0.01, 0.01, 0.02, 0.30])
    assert GainEstimate(mean=mean, spread=spread).pick(running=1, default=0) == 2
    assert GainEstimate(mean=mean, spread=spread).pick(running=1, default=0, min_gain=0.2) == 1
    assert GainEstimate(mean=mean, spread=spread).pick(running=1, default=0, num_spreads=0.0) == 3


@pytest.mark.parametrize("speed", [0.2 * MB, 1 * MB, 20 * MB])
def test_the_shipped_network_finds_a_good_plan_for_a_new_job(speed):
    """Only the best plan counts: messages are free here, so most plans tie and their order says little."""
    window, rows, worth = features_of(speed)
    estimate = MetaNetwork.shipped().predict(window, rows)
    assert worth.max() - worth[estimate.mean.argmax()] < 0.1


def test_the_shipped_weights_match_their_card():
    card = json.loads((WEIGHTS / CARD).read_text(encoding="utf-8"))
    assert card["features"] == features_card()
    assert card["features_version"] == FEATURES_VERSION
    assert card["window_features"] == list(WINDOW_FEATURES)
    assert card["candidate_features"] == list(CANDIDATE_FEATURES)
    assert card["data"]["runs"] >= 20_000
    assert {"grades", "date", "command"} <= set(card)
    assert MetaNetwork.shipped().tensors["row_first"].shape[1] == len(CANDIDATE_FEATURES)


def test_weights_for_other_features_are_refused():
    others = save(
        MetaNetwork.cold().tensors, metadata={"card": json.dumps(features_card() | {"features_version": "0"})}
    )
    with pytest.raises(SpecError, match=r"old.safetensors holds .*features_version': '0'.*nox -s pretrain"):
        MetaNetwork.of_bytes(others, "old.safetensors")


def test_a_truncated_file_is_refused():
    truncated = (WEIGHTS / SHIPPED).read_bytes()[:1000]
    with pytest.raises(SpecError, match="no safetensors file"):
        MetaNetwork.of_bytes(truncated, "truncated.safetensors")


def shifted_cases(count):
    """A network on which schedules gain less than simulated: the measured gain is half the simulated one minus 0.2."""
    window, rows, worth = features_of()
    network = MetaNetwork.shipped()
    estimate = network.predict(window, rows)
    order = np.random.default_rng(0).permutation(len(rows))
    return [
        Case(window=window, row=rows[index], predicted=estimate.mean[index], measured=worth[index] / 2 - 0.2)
        for index in order[:count]
    ], order[count:]


def test_fine_tuning_adapts_to_a_network_unlike_the_simulated_ones():
    """A quarter of the candidates are measured; the predictions of the others improve, too."""
    window, rows, worth = features_of()
    cases, others = shifted_cases(len(rows) // 4)
    memory = Memory(MetaNetwork.shipped(), seed=1)
    before = np.abs(memory.network.predict(window, rows).mean - (worth / 2 - 0.2))[others].mean()
    for case in cases:
        memory.learn(case)
    after = np.abs(memory.network.predict(window, rows).mean - (worth / 2 - 0.2))[others].mean()
    assert after < before / 2
    assert memory.error() == pytest.approx(np.mean([abs(case.predicted - case.measured) for case in cases]))


def test_fine_tuning_does_not_modify_the_initial_network():
    cases, _ = shifted_cases(2)
    network = MetaNetwork.shipped()
    Memory(network).learn(cases[0])
    assert torch.equal(network.tensors["last"], MetaNetwork.shipped().tensors["last"])


def test_a_saved_memory_continues_identically():
    """Saved and loaded, or without interruption: the same weights."""
    cases, _ = shifted_cases(4)
    uninterrupted, first_half = Memory(MetaNetwork.shipped(), seed=5), Memory(MetaNetwork.shipped(), seed=5)
    for case in cases:
        uninterrupted.learn(case)
    for case in cases[:2]:
        first_half.learn(case)
    resumed = Memory.of_bytes(first_half.to_bytes(), "kept")
    assert len(resumed.cases) == 2
    for case in cases[2:]:
        resumed.learn(case)
    assert resumed.to_bytes() == uninterrupted.to_bytes()


def test_weights_alone_are_a_memory_without_cases():
    memory = Memory.of_bytes((WEIGHTS / SHIPPED).read_bytes(), SHIPPED)
    assert not memory.cases
    assert memory.num_learned == 0


def test_a_cold_network_learns_from_cases_alone():
    window, rows, _ = features_of()
    cases, _ = shifted_cases(20)
    memory = Memory(MetaNetwork.cold(2), seed=2)
    before = memory.network.predict(window, rows).spread.mean()
    for case in cases:
        memory.learn(replace(case, measured=0.1))
    after = memory.network.predict(window, rows)
    assert np.abs(after.mean - 0.1).mean() < 0.1
    assert after.spread.mean() < before


def test_pretraining_is_deterministic():
    window, rows, worth = features_of()
    data = Batch.of(
        [Case(window=window, row=row, predicted=0.0, measured=gain) for row, gain in zip(rows, worth, strict=True)]
    )
    first, second = (pretrain(data, seed=4, epochs=2, batch_size=32) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
