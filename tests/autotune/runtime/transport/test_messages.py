"""Messages on emulated links against closed forms: the links that they load, and their duration."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autotune.runtime.transport.link_clock import LinkClocks
from autotune.simulate.collectives import all_reduce_latency_s
from autotune.simulate.edge_loads import hop_bytes, merged, ring_bytes
from autotune.workloads.cluster import Cluster, load_cluster

PAIRS = load_cluster("two-fast-two-slow")
MIXED = load_cluster("mixed-both4")


def with_latencies(cluster: Cluster, *latencies_s: float) -> Cluster:
    hosts = [
        dataclasses.replace(host, link=dataclasses.replace(host.link, latency_s=latency_s))
        for host, latency_s in zip(cluster.hosts, latencies_s, strict=True)
        if host.link is not None
    ]
    return dataclasses.replace(cluster, hosts=tuple(hosts))


def test_a_message_takes_its_senders_uplink_and_its_receivers_downlink() -> None:
    assert hop_bytes(MIXED.topology, 2, 0, 1000) == {4: 1000, 1: 1000}
    assert [MIXED.topology.edges[number].name for number in (4, 1)] == ["host2 up", "host0 down"]


def test_a_message_within_a_host_is_free() -> None:
    assert hop_bytes(PAIRS.topology, 0, 1, 1000) == {}
    assert PAIRS.topology.latency_s(0, 1) == 0.0


def test_the_slower_host_sets_the_latency_as_in_a_ring() -> None:
    cluster = with_latencies(MIXED, 0.001, 0.005, 0.002, 0.003)
    assert cluster.topology.latency_s(0, 1) == cluster.topology.latency_s(1, 0) == 0.005
    assert cluster.topology.latency_s(0, 2) == 0.002
    two = cluster.for_ranks(2)
    assert all_reduce_latency_s("ring", two) == 2 * two.topology.latency_s(0, 1)


def test_a_host_without_a_stated_link_adds_no_latency() -> None:
    bare = dataclasses.replace(MIXED, hosts=tuple(dataclasses.replace(host, link=None) for host in MIXED.hosts))
    assert bare.topology.latency_s(0, 1) == 0.0


def test_messages_round_a_ring_load_the_links_as_an_all_reduce_does() -> None:
    """An all-reduce of four ranks sends 1.5 times its bytes over every edge; so do these messages."""
    topology = MIXED.topology
    sent = merged(hop_bytes(topology, rank, (rank + 1) % 4, 1.5 * 1000) for rank in range(4))
    assert sent == ring_bytes(topology, range(4), 1000)


@pytest.mark.parametrize(("source", "target", "bytes_per_s"), [(0, 1, 125e6), (0, 3, 25e6), (2, 0, 62.5e6)])
def test_the_slower_of_uplink_and_downlink_carries_a_message(source: int, target: int, bytes_per_s: float) -> None:
    path = LinkClocks.create(MIXED)
    clocks = LinkClocks(MIXED, path)
    try:
        ended_s = clocks.reserve(hop_bytes(MIXED.topology, source, target, 1_000_000), 10.0)
    finally:
        clocks.close()
        Path(path).unlink()
    assert ended_s - 10.0 == pytest.approx(1e6 / bytes_per_s)
