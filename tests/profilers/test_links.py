"""Bandwidths as nccl-tests defines them, and what pairs of hosts say about each host's link."""

from __future__ import annotations

import pytest

from autotune.profilers.links import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    SEND,
    Side,
    algbw,
    bus_factor,
    busbw,
    downlink,
    uplink,
)

GBIT = 125e6


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 1024])
def test_bus_factors_are_those_of_nccl_tests(num_ranks: int) -> None:
    """doc/PERFORMANCE.md of nccl-tests, summary."""
    n = num_ranks
    assert bus_factor(ALL_REDUCE, n) == pytest.approx(2 * (n - 1) / n)
    assert bus_factor(ALL_GATHER, n) == bus_factor(REDUCE_SCATTER, n) == pytest.approx((n - 1) / n)
    assert bus_factor(BROADCAST, n) == bus_factor(SEND, n) == 1.0


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
def test_a_ring_that_fills_its_links_has_their_bandwidth_as_busbw(num_ranks: int) -> None:
    """Whatever the number of ranks: S bytes over links of B take S/B · 2(n-1)/n."""
    size = 8e6
    seconds = size / GBIT * 2 * (num_ranks - 1) / num_ranks
    assert busbw(ALL_REDUCE, num_ranks, size, seconds) == pytest.approx(GBIT)
    assert algbw(size, seconds) == pytest.approx(size / seconds)


def test_no_time_is_no_bandwidth() -> None:
    assert algbw(100, 0.0) == busbw(ALL_REDUCE, 4, 100, 0.0) == 0.0


def pairs(ups: dict[str, float], downs: dict[str, float]) -> dict[tuple[str, str], float]:
    return {(a, b): min(ups[a], downs[b]) for a in ups for b in downs if a != b}


def test_links_of_different_speed_are_found_from_pairs() -> None:
    ups = {"a": GBIT, "b": GBIT / 2, "c": GBIT / 5, "d": 2 * GBIT, "e": 2 * GBIT}
    downs = {"a": 2 * GBIT, "b": GBIT, "c": GBIT / 2, "d": 2 * GBIT, "e": 2 * GBIT}
    found = pairs(ups, downs)
    assert uplink("a", found) == Side(bytes_per_s=GBIT, is_limit=True)
    assert uplink("b", found) == Side(bytes_per_s=GBIT / 2, is_limit=True)
    assert uplink("c", found) == Side(bytes_per_s=GBIT / 5, is_limit=True)
    assert downlink("b", found) == Side(bytes_per_s=GBIT, is_limit=True)
    assert downlink("c", found) == Side(bytes_per_s=GBIT / 2, is_limit=True)


def test_the_fastest_link_of_all_is_known_only_from_below() -> None:
    """No other host can receive what it could send."""
    found = pairs({"a": 10 * GBIT, "b": GBIT}, {"a": 10 * GBIT, "b": GBIT})
    assert uplink("a", found) == Side(bytes_per_s=GBIT, is_limit=False)
    assert downlink("a", found) == Side(bytes_per_s=GBIT, is_limit=False)


def test_a_host_without_pairs_has_no_link_to_speak_of() -> None:
    assert uplink("a", {("b", "a"): GBIT}) is None
    assert downlink("b", {("b", "a"): GBIT}) is None
