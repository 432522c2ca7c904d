"""A link probe on emulated links finds the slow link."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from autotune.online.link_state import links_of
from autotune.runtime.transport.link_check import PART_BYTES, host_representatives, num_rounds, probe_links, speed_of
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.workloads.cluster import load_cluster
from tests.gloo_ranks import on_ranks


def test_the_first_rank_of_each_host_represents_it() -> None:
    assert host_representatives((0, 0, 1, 1, 2)) == (0, 2, 4)
    assert [num_rounds(count) for count in (2, 3, 4, 5, 100)] == [1, 2, 3, 3, 3]


def test_ranks_that_represent_no_host_do_nothing() -> None:
    found = on_ranks(4, lambda group: probe_links(group, (0, 2)))
    assert [len(speeds) for speeds in found] == [1, 0, 1, 0]


def test_parts_that_arrived_before_the_wait_do_not_count() -> None:
    """One part per millisecond; the receiver begins to wait after the second part."""
    assert speed_of([0.0, 0.003, 0.004, 0.005, 0.006, 0.007]) == pytest.approx(PART_BYTES / 0.001)
    assert speed_of([0.0, 0.0045, 0.00451, 0.005, 0.006, 0.007]) == pytest.approx(PART_BYTES / 0.001)
    assert speed_of([0.0, 1e-5, 2e-5, 3e-5, 4e-5, 5e-5]) > 1e9


@pytest.mark.parametrize("owned", [False, True])
def test_a_slow_link_is_found(owned: bool) -> None:
    """One of four emulated links has a fifth of the bandwidth; also below owner shards."""
    cluster = load_cluster("slow-link4")
    path = LinkClocks.create(cluster)
    clocks = [LinkClocks(cluster, path) for _ in range(4)]

    def run(group: dist.ProcessGroup) -> tuple[float, ...]:
        paced = PacedGroup(group, cluster, clocks[group.rank()], epoch=1)
        outer = ShardGroup(paced, (0.25,) * 4) if owned else paced
        try:
            return probe_links(outer, range(4))
        finally:
            if isinstance(outer, ShardGroup):
                outer.close().join(timeout=10)
            paced.close().join(timeout=10)

    try:
        links = links_of(on_ranks(4, run))
    finally:
        for clock in clocks:
            clock.close()
        Path(path).unlink()
    assert links[3].both_bytes_per_s < 45e6
    assert min(link.both_bytes_per_s for link in links[:3]) > 1.5 * links[3].both_bytes_per_s
