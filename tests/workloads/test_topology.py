"""The tree of links: paths, latencies, islands, NICs, racks, pairs, and orders of rings."""

from __future__ import annotations

import itertools
import random
import tomllib

import pytest

from autotune.workloads.cluster import Cluster, load_cluster, parse_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.topology import ring_order

FILE = """
[device.gpu]
flops = "1 TFLOP/s"

[fabric.board]
bandwidth = "10 GB/s"
latency = "4 us"
total = "16 GB/s"
island_size = 2
island_bandwidth = "100 GB/s"
island_latency = "1 us"

[rack.left]
uplink = "3 GB/s"
downlink = "2 GB/s"
latency = "7 us"

[rack.right]
uplink = "3 GB/s"
downlink = "3 GB/s"
latency = "9 us"

[[host]]
name = "a"
count = 2
devices = ["4 x gpu"]
fabric = "board"
nics = 2
uplink = "1 GB/s"
downlink = "1 GB/s"
latency = "20 us"
rack = "left"

[[host]]
name = "b"
devices = ["gpu", "gpu"]
uplink = "2 GB/s"
downlink = "2 GB/s"
latency = "30 us"
rack = "right"
"""
PAIRS = """
[[pair]]
between = ["a0", "b"]
bandwidth = "0.5 GB/s"

[[pair]]
between = ["a0/0", "a1/0"]
bandwidth = "50 GB/s"
latency = "1 us"
direct = true
"""


def cluster_of(text: str) -> Cluster:
    return parse_cluster(tomllib.loads(text), where="test.toml", default_name="test")


def names(cluster: Cluster, source: int, target: int) -> set[str]:
    edges = cluster.topology.edges
    return {edges[number].name for number in cluster.topology.path(source, target)}


def test_paths_climb_to_the_place_that_both_share():
    cluster = cluster_of(FILE)
    assert names(cluster, 0, 1) == {"a0/0 in its island up", "a0/1 in its island down"}
    assert names(cluster, 0, 2) == {"a0/0 up", "a0/2 down", "a0 fabric"}
    inside = {"a0 fabric", "a1 fabric"}
    assert names(cluster, 1, 7) == {"a0/1 up", "a0 NIC 0 up", "a1 NIC 1 down", "a1/3 down"} | inside
    to_b = {"a0/3 up", "a0 fabric", "a0 NIC 1 up", "rack left up", "rack right down", "b down"}
    assert names(cluster, 3, 9) == to_b
    assert names(cluster, 8, 9) == set()
    assert names(cluster, 5, 5) == set()


def test_bandwidths_are_of_one_nic_and_of_the_whole_host():
    cluster = cluster_of(FILE)
    assert cluster.hosts[0].link.up_bytes_per_s == 2e9
    speeds = {edge.name: edge.bytes_per_s for edge in cluster.topology.edges}
    assert speeds["a0 NIC 0 up"] == speeds["a1 NIC 1 down"] == 1e9
    assert (speeds["rack left up"], speeds["rack left down"], speeds["a0 fabric"]) == (3e9, 2e9, 16e9)


def test_a_path_pays_the_larger_latency_of_each_level():
    topology = cluster_of(FILE).topology
    assert topology.latency_s(0, 1) == pytest.approx(1e-6)
    assert topology.latency_s(0, 2) == pytest.approx(4e-6)
    assert topology.latency_s(0, 4) == pytest.approx(4e-6 + 20e-6)
    assert topology.latency_s(0, 8) == pytest.approx(4e-6 + 30e-6 + 9e-6)
    assert topology.latency_s(8, 9) == 0


def test_pairs_limit_a_path_or_replace_it():
    plain, cluster = cluster_of(FILE), cluster_of(FILE + PAIRS)
    assert names(cluster, 0, 8) == names(plain, 0, 8) | {"a0 to b"}
    assert names(cluster, 8, 3) == names(plain, 8, 3) | {"b to a0"}
    assert names(cluster, 0, 4) == {"a0/0 to a1/0"}
    assert cluster.topology.latency_s(4, 0) == 1e-6
    assert names(cluster, 1, 4) == names(plain, 1, 4)
    assert cluster.topology.message_s(0, 8, 1e9) == pytest.approx(2.0 + 43e-6)


def test_hosts_islands_and_the_first_ranks():
    cluster = cluster_of(FILE + PAIRS)
    assert cluster.topology.host_of_rank == cluster.host_of_rank == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)
    assert cluster.topology.island_of_rank == (0, 0, 1, 1, 2, 2, 3, 3, -1, -1)
    part = cluster.for_ranks(5)
    assert part.topology.island_of_rank == (0, 0, 1, 1, 2)
    assert part.hosts[1].link.up_bytes_per_s == 1e9
    assert [pair.between for pair in part.pairs] == [("a0/0", "a1/0")]


def test_a_part_keeps_what_its_devices_use():
    """Devices 1 to 3 of the first host, the last of the second: islands, NICs and pairs by their new places."""
    text = PAIRS.replace('"a0/0", "a1/0"', '"a0/2", "a1/3"')
    part = cluster_of(FILE + text).part([1, 2, 3, 7])
    first, second = part.hosts
    assert (first.nic_of_device, first.fabric.islands, first.link.up_bytes_per_s) == ((0, 1, 1), ((0,), (1, 2)), 2e9)
    assert (second.nic_of_device, second.fabric.islands, second.link.up_bytes_per_s) == ((), ((0,),), 1e9)
    assert [pair.between for pair in part.pairs] == [("a0/1", "a1/0")]
    assert names(part, 1, 3) == {"a0/1 to a1/0"}
    assert part.part(range(4)) == part


def random_cluster(draw: random.Random) -> Cluster:
    parts = ['[device.gpu]\nflops = "1 TFLOP/s"']
    parts += [f'[rack.{rack}]\nuplink="1 GB/s"\ndownlink="1 GB/s"\nlatency="{draw.randint(1, 9)} us"' for rack in "rs"]
    for index in range(draw.randint(2, 6)):
        count = draw.choice((1, 2, 4))
        parts.append(
            f'[fabric.f{index}]\nbandwidth="1 GB/s"\nlatency="{draw.randint(1, 3)} us"\n'
            f'island_size=2\nisland_bandwidth="9 GB/s"\nisland_latency="{draw.randint(1, 9)} us"'
        )
        parts.append(
            f'[[host]]\nname="h{index}"\ndevices=["{count} x gpu"]\nuplink="1 GB/s"\ndownlink="1 GB/s"\n'
            f'latency="{draw.choice((0, 2, 5))} us"\nfabric="f{index}"\nnics={draw.choice((1, count))}\n'
            + draw.choice(("", 'rack="r"\n', 'rack="s"\n'))
        )
    if draw.random() < 0.5:
        parts.append('[[pair]]\nbetween=["h0", "h1"]\nbandwidth="1 MB/s"\nlatency="1 ms"')
    return cluster_of("\n".join(parts))


def test_the_worst_latency_is_that_of_the_worst_pair():
    draw = random.Random(3)
    for _ in range(100):
        topology = random_cluster(draw).topology
        ranks = sorted(draw.sample(range(len(topology.places)), draw.randint(1, len(topology.places))))
        worst = max((topology.latency_s(a, b) for a, b in itertools.permutations(ranks, 2)), default=0.0)
        assert topology.worst_latency_s(ranks) == worst


def edge_counts(topology, order) -> list[int]:
    """Of a ring, how often it crosses each edge: racks and hosts first, which are the slower ones."""
    count = dict.fromkeys(range(len(topology.edges)), 0)
    for source, target in zip(order, (*order[1:], order[0]), strict=True):
        for number in topology.path(source, target):
            count[number] += 1
    levels = ("rack", "nic", "fabric", "device")
    return [sum(n for e, n in count.items() if topology.edges[e].level == level) for level in levels]


def test_a_ring_crosses_slow_edges_as_little_as_any():
    draw = random.Random(4)
    for _ in range(30):
        topology = random_cluster(draw).topology
        ranks = draw.sample(range(len(topology.places)), min(7, len(topology.places)))
        ring = ring_order(topology, ranks)
        assert sorted(ring) == sorted(ranks)
        assert ring[0] == ranks[0]
        best = min(edge_counts(topology, (ranks[0], *rest)) for rest in itertools.permutations(ranks[1:]))
        assert edge_counts(topology, ring)[:3] == best[:3]


def test_short_files_are_one_switch():
    for name in ("mixed4", "two-fast-two-slow"):
        topology = load_cluster(name).topology
        assert topology.is_one_switch
        assert [edge.name for edge in topology.edges][:2] == ["host0 up", "host0 down"]
    assert not cluster_of(FILE).topology.is_one_switch
    assert load_cluster("this-machine").for_ranks(4).topology.edges == ()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("nics = 2", "nics = 5", "nics is 5: it must be a number from 1 to 4"),
        ("nics = 2", "nics = [0, 2, 2, 2]", "the NIC of each of the 4 devices, numbered from 0"),
        ("island_size = 2", "islands = [[0, 9]]", "numbered from 0, but the islands of its fabric 'board'"),
        ("island_size = 2", "islands = [[0, 1], [1, 2]]", "a device is in one island only"),
        ("island_size = 2", "", "island_bandwidth without islands"),
        ('island_bandwidth = "100 GB/s"', "", "states island_latency but not island_bandwidth"),
        ('rack = "left"', 'rack = "lift"', "did you mean 'left'"),
        ('fabric = "board"', 'fabric = "bored"', "did you mean 'board'"),
        ("count = 2", "count = 0", "count is 0 with name 'a'"),
        ("4 x gpu", "4 x cpu", "device in test.toml"),
        ('"a0", "b"', '"a0", "a1/0"', "two different hosts, or two different devices"),
        ('"a0", "b"', '"a0", "c"', "host or device in test.toml [[pair]] 0"),
        ("direct = true", "direct = 1", "it must be true (a cable of their own) or false"),
        ('bandwidth = "50 GB/s"\nlatency', "latency", "states latency but not bandwidth"),
        ('downlink = "2 GB/s"\nlatency = "7 us"', 'latency = "7 us"', "states only one of uplink and downlink"),
    ],
)
def test_errors_name_value_rule_and_remedy(before, after, message):
    text = FILE + PAIRS
    assert before in text
    with pytest.raises(SpecError) as error:
        cluster_of(text.replace(before, after, 1))
    assert message in str(error.value)
