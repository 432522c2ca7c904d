"""Emulated links of a tree: one clock per edge, shared by all that crosses it, against closed forms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.runtime.transport.collective_groups import WrapGroup, hierarchical
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.simulate.collectives import all_reduce_latency_s
from autotune.simulate.edge_loads import hop_bytes, ring_bytes
from autotune.workloads.topology import Pair, flat_ring
from tests.autotune.simulate.test_closed_forms import MB, exact
from tests.autotune.simulate.test_edge_loads import INSIDE, ISLAND, NIC, UPLINK, both_ways, tree
from tests.gloo_ranks import gloo_group, in_threads


@contextmanager
def clocks_of(cluster: Any) -> Iterator[LinkClocks]:
    path = LinkClocks.create(cluster)
    clocks = LinkClocks(cluster, path)
    try:
        yield clocks
    finally:
        clocks.close()
        Path(path).unlink()


def ends_s(cluster: Any, *loads: dict[int, float]) -> list[float]:
    """When each of these transfers ends, all posted at 0."""
    with clocks_of(cluster) as clocks:
        return [clocks.reserve(one, 0.0) for one in loads]


def test_two_rings_share_a_nic() -> None:
    cluster = tree([2, 2])
    rings = [ring_bytes(cluster.topology, ranks, 5 * MB) for ranks in ((0, 2), (1, 3))]
    assert ends_s(cluster, *rings) == exact([0.5, 1.0])
    two = tree([2, 2], num_nics=2)
    assert ends_s(two, *(ring_bytes(two.topology, ranks, 5 * MB) for ranks in ((0, 2), (1, 3)))) == exact([0.5, 0.5])


def test_messages_inside_a_host_take_its_fabric_and_those_of_other_hosts_do_not() -> None:
    cluster = tree([3, 3], total=50 * MB)
    hops = [hop_bytes(cluster.topology, *pair, 10 * MB) for pair in ((0, 1), (1, 2), (3, 4))]
    assert ends_s(cluster, *hops) == exact([10 * MB / (50 * MB), 20 * MB / (50 * MB), 10 * MB / (50 * MB)])
    free = tree([3, 3])
    assert ends_s(free, *(hop_bytes(free.topology, *pair, 10 * MB) for pair in ((0, 1), (1, 2), (0, 2)))) == exact(
        [10 * MB / INSIDE, 10 * MB / INSIDE, 20 * MB / INSIDE]
    )


def test_hosts_of_an_oversubscribed_rack_share_its_uplink() -> None:
    cluster = tree([1, 1, 1, 1], rack_of=("left", "left", "right", "right"))
    hops = [hop_bytes(cluster.topology, source, target, 12 * MB) for source, target in ((0, 2), (1, 3), (0, 1))]
    assert ends_s(cluster, *hops) == exact([12 * MB / NIC, 24 * MB / UPLINK, 24 * MB / NIC])


def test_an_island_has_links_of_its_own() -> None:
    cluster = tree([4], islands=((0, 1), (2, 3)))
    hops = [hop_bytes(cluster.topology, source, target, 4 * MB) for source, target in ((0, 1), (0, 2), (1, 0))]
    assert ends_s(cluster, *hops) == exact([4 * MB / ISLAND, 4 * MB / INSIDE, 4 * MB / ISLAND])


def test_a_cable_of_a_pair_is_shared_by_its_devices_only() -> None:
    cable = Pair(between=("host0", "host1"), link=both_ways(40 * MB), is_direct=True)
    cluster = replace(tree([2, 2, 2]), pairs=(cable,))
    hops = [hop_bytes(cluster.topology, source, target, 10 * MB) for source, target in ((0, 2), (1, 3), (0, 4))]
    assert ends_s(cluster, *hops) == exact([0.25, 0.5, 10 * MB / NIC])


def in_paced_groups(cluster: Any, run: Callable[[Any], float], *, is_hierarchical: bool) -> list[float]:
    """`run` on the paced group of each rank, or on the hierarchical one around it."""
    store, size = dist.HashStore(), len(cluster.devices)
    path = LinkClocks.create(cluster)

    def rank_runs(rank: int) -> float:
        clocks = LinkClocks(cluster, path)
        paced = PacedGroup(gloo_group(store, rank, size), cluster, clocks, epoch=1)
        group: Any = hierarchical(WrapGroup(inner=paced, cluster=cluster)) if is_hierarchical else paced
        try:
            for work in [group.allreduce([torch.zeros(1)])]:
                work.wait()
            return run(group)
        finally:
            for one in (group, paced) if is_hierarchical else (paced,):
                one.close().join(timeout=10)
            clocks.close()

    try:
        return in_threads(size, rank_runs)
    finally:
        Path(path).unlink()


@pytest.mark.parametrize("is_hierarchical", [True, False])
def test_an_all_reduce_takes_no_less_than_its_closed_form(is_hierarchical: bool) -> None:
    """Half a megabyte a rank over hosts of two, with latencies; how much longer it takes, this machine decides."""
    cluster = tree([2, 2], latency_s=2e-3, inside_latency_s=1e-4)
    num_bytes = 500_000

    def timed(group: Any) -> float:
        begun_s = time.monotonic()
        group.allreduce([torch.zeros(num_bytes // 4)]).wait()
        return time.monotonic() - begun_s

    took_s = max(in_paced_groups(cluster, timed, is_hierarchical=is_hierarchical))
    if is_hierarchical:
        wire_s = 2 * num_bytes / 2 / INSIDE + num_bytes / NIC
    else:
        wire_s = cluster.topology.busy_s(ring_bytes(cluster.topology, flat_ring(cluster.topology), num_bytes))
    latency_s = all_reduce_latency_s("hierarchical" if is_hierarchical else "ring", cluster)
    assert took_s > 0.98 * (wire_s + latency_s)
