"""Loads on the edges of a tree: against message by message, and step times against closed forms to float accuracy."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from autotune.placement.chain_costs import stage_costs
from autotune.simulate.collectives import all_reduce_latency_s, owned_shares, sum_phases
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.edge_loads import (
    exchange_bytes,
    gather_bytes,
    hierarchical_bytes,
    merged,
    ring_bytes,
    shard_bytes,
)
from autotune.simulate.engine import simulate
from autotune.simulate.tasks import TaskList, make_site
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.plan import CommPlan, CompressionPlan
from autotune.workloads.topology import Fabric, Rack, ring_order
from tests.autotune.simulate.test_closed_forms import MB, exact, factored_graph, make_graph, make_simulator, plan_of
from tests.workloads.test_topology import random_cluster

INSIDE, NIC, ISLAND, UPLINK = 100 * MB, 10 * MB, 400 * MB, 12 * MB


def both_ways(speed, latency_s=0.0):
    return Link(up_bytes_per_s=speed, down_bytes_per_s=speed, latency_s=latency_s)


def tree(  # noqa: PLR0913 - the parts of a tree
    counts, *, num_nics=1, rack_of=(), islands=(), total=None, latency_s=0.0, inside_latency_s=0.0, emulation="paced"
):
    """Hosts of so many devices; `rack_of` names the rack of each."""
    fabric = Fabric(
        device=both_ways(INSIDE, inside_latency_s),
        total_bytes_per_s=total,
        islands=islands,
        island=both_ways(ISLAND) if islands else None,
    )
    hosts = tuple(
        Host(
            name=f"host{index}",
            devices=(Device(name="device", flops_per_s=1e9),) * count,
            link=both_ways(NIC * num_nics, latency_s),
            nic_of_device=tuple(place * num_nics // count for place in range(count)) if num_nics > 1 else (),
            fabric=fabric,
            rack=rack_of[index] if rack_of else "",
        )
        for index, count in enumerate(counts)
    )
    racks = tuple(Rack(name=name, link=both_ways(UPLINK)) for name in sorted(set(rack_of)))
    return Cluster(name="tree", hosts=hosts, emulation=emulation, racks=racks)


def sum_s(cluster, collective, num_bytes=10 * MB, **comm):
    """Predicted seconds of an all-reduce, after the 3 s of the only op."""
    size = len(cluster.devices)
    simulator = make_simulator(make_graph(1, param_bytes=num_bytes), cluster, size)
    return simulator.step_s(plan_of(*[1] * size, bucket_bytes=10**9, collective=collective, **comm)) - 3.0


@pytest.mark.parametrize("emulation", ["paced", "none"])
@pytest.mark.parametrize(("num_hosts", "size"), [(2, 2), (2, 4), (3, 4), (4, 1), (1, 4)])
def test_hierarchical_all_reduce(num_hosts, size, emulation):
    """(n-1)/n of the bytes on each device's link, twice; between them 2(H-1)/H of them on each NIC, n rings together."""
    cluster = tree([size] * num_hosts, latency_s=1e-3, inside_latency_s=1e-5, emulation=emulation)
    inside_s = (size - 1) / size * 10 * MB / INSIDE
    across_s = 2 * (num_hosts - 1) / num_hosts * 10 * MB / min(NIC, INSIDE * size)
    # A message to another host pays the latency of the fabric and that of the NIC.
    latency_s = 2 * (size - 1) * 1e-5 + 2 * (num_hosts - 1) * (1e-3 + 1e-5)
    assert all_reduce_latency_s("hierarchical", cluster) == exact(latency_s)
    assert sum_s(cluster, "hierarchical") == exact(2 * inside_s + across_s + latency_s)


def test_hierarchical_beats_the_flat_ring_where_ranks_interleave_or_nics_are_several():
    """A ring in rank order crosses each NIC once, as few bytes as the hierarchical sum; but it uses one NIC of two."""
    one, two = tree([4, 4]), tree([4, 4], num_nics=2)
    flat_s = 2 * 7 / 8 * 10 * MB / NIC
    assert sum_s(one, "ring") == sum_s(two, "ring") == exact(flat_s)
    inside_s = 2 * 3 / 4 * 10 * MB / INSIDE
    assert sum_s(one, "hierarchical") == exact(inside_s + 1.0)
    assert sum_s(two, "hierarchical") == exact(inside_s + 0.5)


def test_hierarchical_shards():
    """Two hosts own half each: as many bytes across as a ring, in two rounds."""
    cluster = tree([2, 2, 2], latency_s=1e-3)
    inside_s = 10 * MB / INSIDE
    assert sum_s(cluster, "hierarchical-shards") == exact(inside_s + 2 * 2 / 3 * 10 * MB / NIC + 2e-3)
    slow = replace(cluster.hosts[2], link=both_ways(NIC / 5, 1e-3))
    uneven = replace(cluster, hosts=(*cluster.hosts[:2], slow))
    # The slow host owns nothing: it sends the bytes once and receives them once.
    assert sum_s(uneven, "hierarchical-shards") == exact(inside_s + 10 * MB / (NIC / 5) + 2e-3)


def test_owner_shards_per_device():
    """Each of the 2 + 1 ranks owns a third: a rank of the pair sends a third to either other rank, and its sum to both."""
    cluster = tree([2, 1])
    loads = sum_phases(CommPlan(collective="shards", shares=(1 / 3, 1 / 3, 1 / 3)), cluster, 9.0)[0]
    found = {cluster.topology.edges[number].name: num_bytes for number, num_bytes in loads.items()}
    assert found == exact(
        {
            **{f"host0/{place} {side}": 12.0 for place in range(2) for side in ("up", "down")},
            **{f"host1/0 {side}": 12.0 for side in ("up", "down")},
            **{f"host{host} {side}": 12.0 for host in range(2) for side in ("up", "down")},
        }
    )


def test_two_rings_share_a_nic():
    """Ring 0-2 and ring 1-3 of two hosts with two devices, 5 MB each: the NIC takes both, one after the other or shared."""
    for emulation in ("paced", "none"):
        cluster = tree([2, 2], emulation=emulation)
        topology, made = cluster.topology, TaskList()
        for ranks in ((0, 2), (1, 3)):
            made.transfer(list(ring_bytes(topology, ranks, 5 * MB).items()))
        site = make_site(4, [edge.bytes_per_s for edge in topology.edges], serialized=emulation == "paced")
        assert simulate(made.tasks(), site).makespan_s == exact(1.0)


def test_an_oversubscribed_rack():
    """Four hosts in two racks: the ring enters and leaves each rack once, over an uplink that is 1.2 NICs."""
    cluster = tree([1, 1, 1, 1], rack_of=("left", "left", "right", "right"))
    assert sum_s(cluster, "ring") == exact(1.5 * 10 * MB / NIC)
    mixed = tree([1, 1, 1, 1], rack_of=("left", "right", "left", "right"))
    assert mixed.topology.busy_s(ring_bytes(mixed.topology, range(4), 10 * MB)) == exact(2 * 1.5 * 10 * MB / UPLINK)
    assert sum_s(mixed, "ring") == exact(1.5 * 10 * MB / NIC)
    topology = mixed.topology
    assert topology.busy_s(ring_bytes(topology, ring_order(topology, range(4)), 10 * MB)) == exact(1.5 * 10 * MB / NIC)
    # Two hosts send 10 MB · (1/4 to each other rank, both phases): what leaves a rack is 2 · 2 · 2/4 · 10 MB.
    assert sum_s(cluster, "shards") == exact(2 * 10 * MB / UPLINK)


def test_island_pairs():
    """Ring 0 1 2 3 over islands 0-1 and 2-3: two hops in islands, two over the fabric; 0 2 1 3 uses the fabric only."""
    cluster = tree([4], islands=((0, 1), (2, 3)))
    topology, per_hop = cluster.topology, 1.5 * 10 * MB
    assert sum_s(cluster, "ring") == exact(per_hop / INSIDE)
    loads = ring_bytes(topology, range(4), 10 * MB)
    by_level = dict.fromkeys(("island", "device"), 0.0)
    for number, num_bytes in loads.items():
        by_level[topology.edges[number].level] += num_bytes
    assert by_level == exact({"island": 4 * per_hop, "device": 4 * per_hop})
    assert topology.busy_s(ring_bytes(topology, (0, 1), 10 * MB)) == exact(10 * MB / ISLAND)
    assert topology.busy_s(ring_bytes(topology, (0, 2, 1, 3), 10 * MB)) == exact(per_hop / INSIDE)
    shared = tree([4], islands=((0, 1), (2, 3)), total=50 * MB)
    assert sum_s(shared, "ring") == exact(2 * per_hop / (50 * MB))


def test_exchanges_are_the_sum_of_their_messages():
    draw = random.Random(5)
    for _ in range(60):
        topology = random_cluster(draw).topology
        ranks = draw.sample(range(len(topology.places)), draw.randint(1, len(topology.places)))
        sends, takes = ([draw.choice((0.0, draw.uniform(0, 9))) for _ in ranks] for _ in range(2))
        expected: dict[int, float] = {}
        for (a, sent), (b, taken) in itertools.permutations(
            list(zip(ranks, zip(sends, takes, strict=True), strict=True)), 2
        ):
            for number in topology.path(a, b):
                expected[number] = expected.get(number, 0.0) + sent[0] * taken[1]
        found = exchange_bytes(topology, ranks, sends, takes)
        for number in range(len(topology.edges)):
            assert found.get(number, 0.0) == pytest.approx(expected.get(number, 0.0), abs=1e-9)


@pytest.mark.parametrize("counts", [(2, 3), (1, 4, 6), (8, 8, 2)])
def test_hosts_of_unlike_sizes(counts):
    """Each NIC carries what it does for equal hosts; every rank holds its shard and sends it on."""
    cluster = tree(counts)
    topology, hosts = cluster.topology, len(counts)
    inside, across, again = hierarchical_bytes(topology, range(sum(counts)), 60.0)
    assert inside == again
    nics = [number for number, edge in enumerate(topology.edges) if edge.level == "nic"]
    assert [across[number] for number in nics] == exact([2 * (hosts - 1) / hosts * 60.0] * len(nics))
    leaving = [across.get(place.device_way[0], 0.0) for place in topology.places]
    sizes = [counts[place.host] for place in topology.places]
    assert leaving == exact([2 * (hosts - 1) / hosts * 60.0 / size for size in sizes])


def test_factors_and_sums_of_a_hierarchical_plan():
    """Gathers have one phase, and pass the same edges as under any other plan."""
    cluster = tree([2, 2])
    simulator = make_simulator(factored_graph(1), cluster, 4)
    plan = plan_of(1, 1, 1, 1, reducer="scheduled")
    step_s = {
        collective: simulator.step_s(
            replace(
                plan,
                comm=replace(plan.comm, collective=collective),
                compression=CompressionPlan(factors=("op0",)),
            )
        )
        for collective in ("ring", "hierarchical")
    }
    assert step_s["hierarchical"] == exact(step_s["ring"])
    gathered = gather_bytes(cluster.topology, range(4), [1.0] * 4)
    assert merged([gathered, {}]) == gathered


def test_the_cut_search_reads_the_same_paths():
    draw = random.Random(6)
    for _ in range(10):
        cluster = random_cluster(draw)
        graph, topology = make_graph(3), cluster.topology
        costs = stage_costs(graph, cost_model(graph, cluster), 1.0)
        for a, b in itertools.permutations(range(len(topology.places)), 2):
            assert costs.link_s(a, b, 1) == exact(topology.message_s(a, b, 1000.0))


def test_owner_shares_heed_racks():
    """Rack "left" is slow: as a host behind a slow link, its hosts own nothing. Never slower than shares by NIC alone."""
    cluster = tree([1, 1, 1, 1], rack_of=("left", "left", "right", "right"))
    slow = replace(cluster, racks=(Rack(name="left", link=both_ways(2 * MB)), cluster.racks[1]))
    shares = owned_shares(slow)
    # Two ranks send 2 (1 - W) + 2 W = 2 whatever they own.
    assert slow.topology.busy_s(shard_bytes(slow.topology, range(4), shares, 1.0)) == exact(2 / (2 * MB))
    one = tree([1, 1, 1, 1, 1], rack_of=("left", "right", "right", "right", "right"))
    one = replace(one, racks=(Rack(name="left", link=both_ways(2 * MB)), Rack(name="right", link=both_ways(100 * MB))))
    assert owned_shares(one) == exact([0.0, 0.25, 0.25, 0.25, 0.25])
    draw = random.Random(7)
    for _ in range(50):
        names = [draw.choice(("left", "right", "")) for _ in range(draw.randint(2, 6))]
        cluster = tree([draw.randint(1, 3) for _ in names], rack_of=names)
        cluster = replace(
            cluster,
            racks=tuple(Rack(name=name, link=both_ways(draw.uniform(1, 40) * MB)) for name in ("left", "right")),
            hosts=tuple(replace(host, link=both_ways(draw.uniform(1, 20) * MB), fabric=None) for host in cluster.hosts),
        )
        topology, ranks = cluster.topology, range(len(cluster.devices))
        shares = owned_shares(cluster)
        assert sum(shares) == exact(1.0)
        best_s = topology.busy_s(shard_bytes(topology, ranks, shares, 1.0))
        for _ in range(200):
            other = [draw.random() ** 4 / len(cluster.hosts[host].devices) for host in cluster.host_of_rank]
            drawn = [share / sum(other) for share in other]
            assert best_s <= topology.busy_s(shard_bytes(topology, ranks, drawn, 1.0)) * (1 + 1e-9)


def test_owner_shares_are_as_good_as_on_one_switch_where_racks_are_no_limit():
    cluster = tree([1, 2, 1], rack_of=("left", "left", "right"))

    def hosts_of(one):
        return (replace(host, link=both_ways(speed * MB)) for host, speed in zip(one.hosts, (3, 5, 9), strict=True))

    wide = tuple(Rack(name=name, link=both_ways(1e15)) for name in ("left", "right"))
    bare = replace(cluster, hosts=tuple(replace(host, rack="") for host in cluster.hosts), racks=())
    bare, racked = (replace(one, hosts=tuple(hosts_of(one))) for one in (bare, replace(cluster, racks=wide)))
    times = [one.topology.busy_s(shard_bytes(one.topology, range(4), owned_shares(one), 1.0)) for one in (bare, racked)]
    assert times[0] == exact(times[1])
