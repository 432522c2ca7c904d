"""Links from the receive speeds of hosts, and the description of those that changed."""

from __future__ import annotations

import random

import pytest

from autotune.online.link_state import Speed, changed_hosts, in_words, links_of, ranks_on, steadied, with_links
from autotune.runtime.transport.link_check import num_rounds
from autotune.workloads.cluster import Cluster, load_cluster

MIXED = load_cluster("mixed4")


def received(speeds: list[Speed]) -> list[list[float]]:
    size = len(speeds)
    return [
        [
            min(speeds[(host - number) % size].up_bytes_per_s, speeds[host].down_bytes_per_s)
            for number in range(1, num_rounds(size) + 1)
        ]
        for host in range(size)
    ]


def like(*factors: float) -> list[Speed]:
    return [Speed(up_bytes_per_s=125e6 * factor, down_bytes_per_s=125e6 * factor) for factor in factors]


@pytest.mark.parametrize("seed", range(20))
def test_links_are_measured_up_to_the_second_fastest(seed: int) -> None:
    """A link is measured by a message to or from one that is at least as fast."""
    draw = random.Random(seed)
    speeds = like(*(draw.choice([0.05, 0.2, 0.5, 1.0]) for _ in range(4)))
    fastest = sorted(speed.both_bytes_per_s for speed in speeds)[-2]
    found = links_of(received(speeds))
    for speed, seen in zip(speeds, found, strict=True):
        assert seen.both_bytes_per_s == pytest.approx(min(speed.both_bytes_per_s, fastest))


def test_links_that_differ_by_an_error_are_equal() -> None:
    assert steadied([1.0, 5.2, 1.1, 4.8, 0.9]) == pytest.approx([1.0, 5.0, 1.0, 5.0, 1.0])
    assert steadied([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]


def test_a_slow_direction_is_distinguished_from_the_other() -> None:
    speeds = like(1, 1, 1, 1)
    speeds[2] = Speed(up_bytes_per_s=10e6, down_bytes_per_s=125e6)
    assert links_of(received(speeds)) == tuple(speeds)


def changed_to(*factors: float) -> tuple[Cluster, dict[int, float]]:
    now = with_links(MIXED, links_of(received(like(*factors))))
    return now, changed_hosts(MIXED, now)


def test_a_link_that_drops_is_named_with_its_rank() -> None:
    now, ratios = changed_to(1, 0.2, 1, 1)
    assert ratios == {1: pytest.approx(0.2)}
    assert in_words(now, ratios) == "host1's link carries 0.2 times what it did"
    assert ranks_on(now, list(ratios)) == (1,)
    assert now.hosts[1].link is not None
    assert now.hosts[1].link.latency_s == pytest.approx(50e-6)


def test_the_error_of_a_short_link_probe_is_no_change() -> None:
    now, ratios = changed_to(0.9, 1.1, 1.15, 0.85)
    assert ratios == {}
    assert in_words(now, ratios) == "no link carries less than before"


def test_all_and_several_links_are_named_together() -> None:
    assert in_words(*changed_to(0.25, 0.25, 0.25, 0.25)) == "all links carry 0.25 times what they did"
    assert in_words(*changed_to(0.5, 1, 1, 0.2)) == (
        "host0's link carries 0.5, host3's link carries 0.2 times what it did"
    )
