"""How many steps it takes to believe that a rank has changed."""

from __future__ import annotations

import random

import pytest

from autotune.online.rank_cost import RankCostModel


def settled(num_steps: int = 20, noise: float = 0.005, seed: int = 0) -> RankCostModel:
    """A rank that takes a second for 10 units, give or take."""
    model, draw = RankCostModel(), random.Random(seed)
    for _ in range(num_steps):
        assert not model.observe(10.0, draw.gauss(1.0, noise))
    return model


@pytest.mark.parametrize("seconds", [1.15, 0.93, 1.4, 0.5])
def test_a_calm_rank_is_believed_at_once(seconds: float) -> None:
    model = settled()
    assert model.observe(10.0, seconds)
    assert model.unit_s == pytest.approx(seconds / 10)


@pytest.mark.parametrize(("seconds", "num_steps"), [(1.06, 1), (1.04, 2), (0.965, 2), (1.025, 3), (0.975, 3)])
def test_the_smaller_a_change_the_more_steps_it_takes(seconds: float, num_steps: int) -> None:
    model = settled(noise=0.002)
    believed = [model.observe(10.0, seconds) for _ in range(num_steps)]
    assert believed == [False] * (num_steps - 1) + [True]


@pytest.mark.parametrize("seconds", [1.02, 0.99])
def test_noise_is_not(seconds: float) -> None:
    assert not settled().observe(10.0, seconds)


def test_a_rank_that_nobody_knows_yet_must_be_far_off() -> None:
    assert not settled(6).observe(10.0, 1.15)
    assert settled(6).observe(10.0, 1.4)


def test_where_another_rank_has_changed_less_is_enough() -> None:
    model = settled()
    assert not model.observe(10.0, 1.05)
    assert model.reconsider()
    assert model.unit_s == pytest.approx(0.105)
    calm = settled()
    assert not calm.observe(10.0, 1.01)
    assert not calm.reconsider()


def test_after_a_outlier_step_what_was_known_before_counts_again() -> None:
    model = settled()
    assert model.observe(10.0, 1.3)
    assert model.observe(10.0, 1.0)
    assert model.num_steps > 5
    assert model.unit_s == pytest.approx(0.1, rel=0.01)


def test_who_has_had_a_outlier_step_must_be_slower_than_that_to_be_believed() -> None:
    model = settled()
    model.observe(10.0, 1.15)
    model.observe(10.0, 1.0)
    assert not model.observe(10.0, 1.15)
    assert model.observe(10.0, 1.3) or model.observe(10.0, 1.3)


def test_outlier_steps_are_forgotten() -> None:
    model, draw = settled(), random.Random(5)
    model.observe(10.0, 1.15)
    for _ in range(101):
        model.observe(10.0, draw.gauss(1.0, 0.005))
    assert model.observe(10.0, 1.15)


def test_a_change_that_lasts_is_no_outlier_step() -> None:
    model = settled()
    assert model.observe(10.0, 1.5)
    assert not model.observe(10.0, 1.5)
    assert model.unit_s == pytest.approx(0.15)
    assert model.observe(10.0, 1.0)
    assert not model.observe(10.0, 1.0)
    assert model.unit_s == pytest.approx(0.1)
