"""α and β from measured times on k units."""

from __future__ import annotations

import pytest

from autotune.provision.scaling import fit_share
from autotune.workloads.errors import SpecError


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95, 1.0])
def test_times_of_the_model_give_its_share(share):
    rows = tuple((k, 0.7 * (1 - share + share / k)) for k in (1, 2, 4))
    found, error = fit_share(rows, "rows")
    assert found == pytest.approx(share)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_noise_shows_in_the_error_and_two_numbers_of_units_have_none():
    noisy = ((1, 1.0), (2, 0.55 * 1.1), (4, 0.325))
    share, error = fit_share(noisy, "rows")
    assert 0.8 < share <= 1
    assert 0.02 < error < 0.12
    assert fit_share(noisy[:2], "rows")[1] is None


def test_more_than_perfect_and_less_than_none_are_cut():
    assert fit_share(((1, 1.0), (2, 0.4), (4, 0.15)), "rows")[0] == 1.0
    assert fit_share(((1, 1.0), (2, 1.2), (4, 1.3)), "rows")[0] == 0.0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (((1, 1.0),), "at least two"),
        (((1, 1.0), (1, 1.1)), "at least two"),
        (((1, 1.0, 2.0), (2, 1.0)), "give two"),
        (((1.5, 1.0), (2, 1.0)), "whole number"),
        (((1, 0.0), (2, 1.0)), "above 0"),
    ],
)
def test_rows_that_say_nothing_are_refused(rows, words):
    with pytest.raises(SpecError, match=words):
        fit_share(rows, "scaling.cpu.compute")
