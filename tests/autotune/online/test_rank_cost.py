"""How many steps the detection of a changed rank takes."""

from __future__ import annotations

import random

import pytest

from autotune.online.rank_cost import RankCostModel


def observed_rank(num_steps: int = 20, noise: float = 0.005, seed: int = 0) -> RankCostModel:
    """A rank that takes a second for 10 units of work, with some noise."""
    model, draw = RankCostModel(), random.Random(seed)
    for _ in range(num_steps):
        assert not model.observe(10.0, draw.gauss(1.0, noise))
    return model


@pytest.mark.parametrize("seconds", [1.15, 0.93, 1.4, 0.5])
def test_a_change_of_a_calm_rank_is_detected_in_one_step(seconds: float) -> None:
    model = observed_rank()
    assert model.observe(10.0, seconds)
    assert model.unit_s == pytest.approx(seconds / 10)


@pytest.mark.parametrize(("seconds", "num_steps"), [(1.06, 1), (1.04, 2), (0.965, 2), (1.025, 3), (0.975, 3)])
def test_the_smaller_a_change_the_more_steps_it_takes(seconds: float, num_steps: int) -> None:
    model = observed_rank(noise=0.002)
    detected = [model.observe(10.0, seconds) for _ in range(num_steps)]
    assert detected == [False] * (num_steps - 1) + [True]


@pytest.mark.parametrize("seconds", [1.02, 0.99])
def test_noise_is_no_change(seconds: float) -> None:
    assert not observed_rank().observe(10.0, seconds)


def test_a_new_rank_must_deviate_more() -> None:
    assert not observed_rank(6).observe(10.0, 1.15)
    assert observed_rank(6).observe(10.0, 1.4)


def test_a_smaller_deviation_suffices_if_another_rank_has_changed() -> None:
    model = observed_rank()
    assert not model.observe(10.0, 1.05)
    assert model.reconsider()
    assert model.unit_s == pytest.approx(0.105)
    calm = observed_rank()
    assert not calm.observe(10.0, 1.01)
    assert not calm.reconsider()


def test_steps_before_an_outlier_step_are_restored() -> None:
    model = observed_rank()
    assert model.observe(10.0, 1.3)
    assert model.observe(10.0, 1.0)
    assert model.num_steps > 5
    assert model.unit_s == pytest.approx(0.1, rel=0.01)


def test_a_change_must_exceed_recent_outlier_steps() -> None:
    model = observed_rank()
    model.observe(10.0, 1.15)
    model.observe(10.0, 1.0)
    assert not model.observe(10.0, 1.15)
    assert model.observe(10.0, 1.3) or model.observe(10.0, 1.3)


def test_outlier_steps_are_forgotten() -> None:
    model, draw = observed_rank(), random.Random(5)
    model.observe(10.0, 1.15)
    for _ in range(101):
        model.observe(10.0, draw.gauss(1.0, 0.005))
    assert model.observe(10.0, 1.15)


def test_a_change_that_lasts_is_no_outlier_step() -> None:
    model = observed_rank()
    assert model.observe(10.0, 1.5)
    assert not model.observe(10.0, 1.5)
    assert model.unit_s == pytest.approx(0.15)
    assert model.observe(10.0, 1.0)
    assert not model.observe(10.0, 1.0)
    assert model.unit_s == pytest.approx(0.1)
