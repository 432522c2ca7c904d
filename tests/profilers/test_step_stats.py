"""One step of one rank in a few bytes, and sums that a line is fitted from."""

from __future__ import annotations

import random
from dataclasses import astuple, replace

import pytest

from autotune.profilers.step_stats import PACKED_BYTES, Part, PartSums, StepStats
from autotune.workloads.errors import SpecError

STEP = StepStats(
    rank=3,
    step=70_000,
    samples=52,
    step_s=0.31,
    compute_s=0.2,
    forward_s=0.06,
    backward_s=0.13,
    wait_s=0.11,
    stalled_s=0.01,
    parts=PartSums.of([Part(4e6, 0.0, 0.1, 0.2), Part(1e6, 0.1, 0.15, 0.22)]),
)


def test_a_packed_step_is_small_and_comes_back():
    packed = STEP.pack()
    assert len(packed) == PACKED_BYTES <= 100
    again = StepStats.unpack(packed)
    assert astuple(replace(again, parts=PartSums()))[:-1] == pytest.approx(
        astuple(replace(STEP, parts=PartSums()))[:-1]
    )
    assert astuple(again.parts) == pytest.approx(astuple(STEP.parts), rel=1e-6)
    assert StepStats.unpack(again.pack()) == again


def test_sums_of_squares_keep_their_digits():
    """A fit takes differences of them: single precision would leave noise."""
    assert StepStats.unpack(STEP.pack()).parts.square_bytes == STEP.parts.square_bytes == 17e12


def test_bytes_of_another_version_are_refused():
    with pytest.raises(SpecError, match="same version on every rank"):
        StepStats.unpack(STEP.pack() + b"\0")


def test_parts_in_flight_together_are_served_one_after_the_other():
    """Two parts posted at once over one link complete at 1 s and 2 s: each took 1 s of it, though the second was in flight for 2."""
    sums = PartSums.of([Part(10.0, 0.0, 0.0, 1.0), Part(10.0, -0.5, 0.0, 2.0)])
    assert (sums.service_s, sums.flight_s, sums.queue_s) == (2.0, 3.0, 0.5)
    assert (sums.num_parts, sums.num_bytes, sums.square_bytes, sums.byte_seconds) == (2, 20.0, 200.0, 20.0)


def test_the_order_of_parts_does_not_matter():
    parts = [Part(float(n), 0.0, 0.1 * n, 0.1 * n + 1) for n in range(1, 9)]
    shuffled = random.Random(0).sample(parts, len(parts))
    assert PartSums.of(shuffled) == PartSums.of(parts)


def test_sums_add_up():
    a, b = PartSums.of([Part(1.0, 0, 0, 1)]), PartSums.of([Part(3.0, 0, 0, 2)])
    assert a + b == PartSums(num_parts=2, flight_s=3, num_bytes=4, service_s=3, square_bytes=10, byte_seconds=7)
