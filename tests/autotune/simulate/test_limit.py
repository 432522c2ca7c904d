"""The limit against closed forms: no plan is faster, and some plans reach it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from autotune.results.store.record import Limit
from autotune.simulate.collectives import ring_loads
from autotune.simulate.limit import stated_sample_s, step_limit
from autotune.simulate.roofline import compute_s
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.plan import MIB
from autotune.workloads.topology import Link, Pair

MIXED4 = load_cluster("mixed4")
FLOPS = 8e6


def graph(
    *, flops: float = FLOPS, fixed_bytes: float = 0.0, param_bytes: int = MIB, shapes: tuple[tuple[int, int], ...] = ()
) -> OpGraph:
    """One op of three units of work (forward 1, backward 2)."""
    op = Op(
        name="0",
        kind="Linear",
        num_calls=1,
        flops_per_sample=flops,
        fixed_bytes=fixed_bytes,
        bytes_per_sample=0.0,
        param_bytes=param_bytes,
        backward_factor=2.0,
        factor_shapes=shapes,
    )
    return OpGraph(ops=(op,), saved_bytes_per_sample=0.0)


def limit(cluster: Cluster = MIXED4, *, param_bytes: int = 0, global_batch: int = 64) -> Limit:
    model = graph(param_bytes=param_bytes)
    return step_limit(stated_sample_s(model, cluster), cluster, model, global_batch=global_batch)


def test_a_sample_takes_forward_and_backward_on_each_device() -> None:
    """24 MFLOP at 2.4, 1.6, 1.2 and 0.6 GFLOP/s."""
    assert stated_sample_s(graph(), MIXED4) == pytest.approx([0.010, 0.015, 0.020, 0.040])


def test_fixed_costs_are_spread_over_many_samples() -> None:
    """The limit must hold for any batch, so what is paid once per step must not count per sample."""
    fixed = stated_sample_s(graph(fixed_bytes=1e9), MIXED4)
    assert fixed == pytest.approx(stated_sample_s(graph(), MIXED4), rel=1e-3)


def test_the_compute_bound_of_mixed4_is_2_4167_times_faster_than_an_even_split() -> None:
    """Even: the quarter-speed device takes 16 · 40 ms. Limit: 64 samples over 1 + 2/3 + 1/2 + 1/4 devices of 10 ms."""
    even_s = max(compute_s(graph(), device, 16) for device in MIXED4.devices)
    assert even_s == pytest.approx(0.640)
    assert limit().compute_s == pytest.approx(0.64 / (1 + 2 / 3 + 1 / 2 + 1 / 4))
    assert even_s / limit().compute_s == pytest.approx(2.4167, abs=5e-5)


def test_on_equal_devices_an_even_split_is_the_compute_bound() -> None:
    assert limit(load_cluster("uniform4")).compute_s == pytest.approx(16 * 0.010)


@pytest.mark.parametrize("total", [4, 7, 12])
def test_no_whole_split_is_faster_than_the_compute_bound(total: int) -> None:
    sample_s = stated_sample_s(graph(), MIXED4)
    splits = (s for s in itertools.product(range(total + 1), repeat=4) if sum(s) == total)
    fastest = min(max(n * t for n, t in zip(split, sample_s, strict=True)) for split in splits)
    assert limit(global_batch=total).compute_s <= fastest + 1e-12


def test_the_network_bound_is_every_parameter_once_over_the_link() -> None:
    """125 MB over 1 Gbit/s; the fastest device alone would take 1.28 s."""
    assert limit(param_bytes=125_000_000, global_batch=128).network_s == pytest.approx(1.0)


def test_one_device_alone_needs_no_network() -> None:
    assert limit(param_bytes=125_000_000, global_batch=64).network_s == pytest.approx(0.64)
    assert limit(param_bytes=10**12, global_batch=64).network_s == pytest.approx(0.64)


def test_a_host_behind_a_slow_link_may_be_left_out_of_the_bound() -> None:
    """Devices of 10 ms a sample; the last host would need 5 s for 125 MB. Without it 512 samples take 1.71 s, and 1,600 take 5.33 s."""
    slow = load_cluster("slow-link4")
    sample_s, model = [0.010] * 4, graph(param_bytes=125_000_000)
    without = 512 * 0.010 / 3
    assert step_limit(sample_s, slow, model, global_batch=512).network_s == pytest.approx(without)
    assert step_limit(sample_s, slow, model, global_batch=1600).network_s == pytest.approx(5.0)
    assert step_limit(sample_s, slow, model, global_batch=2400).network_s == pytest.approx(6.0)


def test_the_slower_direction_sets_the_network_bound() -> None:
    host = MIXED4.hosts[2]
    assert host.link is not None
    lame = dataclasses.replace(host, link=dataclasses.replace(host.link, down_bytes_per_s=12.5e6))
    cluster = dataclasses.replace(MIXED4, hosts=(MIXED4.hosts[0], lame))
    assert limit(cluster, param_bytes=12_500_000, global_batch=120).network_s == pytest.approx(1.0)


def test_a_cable_of_their_own_carries_what_the_nics_do_not() -> None:
    """Two hosts behind 10 Mbit/s, joined by 1 Gbit/s: 12.5 MB take 0.1 s besides the NICs."""
    slow = Link(up_bytes_per_s=1.25e6, down_bytes_per_s=1.25e6)
    hosts = tuple(dataclasses.replace(host, link=slow) for host in MIXED4.hosts[:2])
    cable = Pair(
        between=(hosts[0].name, hosts[1].name),
        link=Link(up_bytes_per_s=125e6, down_bytes_per_s=125e6),
        is_direct=True,
    )
    cluster = dataclasses.replace(MIXED4, hosts=hosts, pairs=(cable,))
    model = graph(param_bytes=12_500_000)
    alone, joined = (
        step_limit([0.1] * 2, one, model, global_batch=64).network_s
        for one in (dataclasses.replace(cluster, pairs=()), cluster)
    )
    assert alone == pytest.approx(6.4)
    assert joined == pytest.approx(3.2)


@pytest.mark.parametrize("name", ["mixed4", "slow-link4", "two-fast-two-slow"])
def test_a_ring_all_reduce_never_beats_the_network_bound(name: str) -> None:
    cluster, num_bytes = load_cluster(name), 10_000_000
    took = 0.0
    for load in ring_loads(cluster.host_of_rank, num_bytes):
        link = cluster.hosts[load.host].link
        assert link is not None
        took = max(took, load.up_bytes / link.up_bytes_per_s, load.down_bytes / link.down_bytes_per_s)
    model = graph(param_bytes=num_bytes)
    assert step_limit([took / 16] * 4, cluster, model, global_batch=64).network_s <= took * (1 + 1e-9)


def test_one_host_alone_has_no_network_bound() -> None:
    assert limit(load_cluster("two-fast-two-slow").for_ranks(2), param_bytes=10**9).network_s == 0.0


def test_hosts_without_a_stated_link_have_no_network_bound() -> None:
    bare = dataclasses.replace(MIXED4, hosts=tuple(dataclasses.replace(host, link=None) for host in MIXED4.hosts))
    assert limit(bare, param_bytes=10**9).network_s == 0.0


def test_the_path_bound_is_one_sample_on_the_fastest_device() -> None:
    assert limit().path_s == pytest.approx(0.010)


def test_a_tiny_batch_is_bound_by_the_path_of_one_sample() -> None:
    found = limit(global_batch=1)
    assert found.compute_s < found.path_s
    assert found.step_s == found.path_s


@pytest.mark.parametrize("largest", ["compute_s", "network_s", "path_s"])
def test_the_limit_is_the_largest_of_its_parts(largest: str) -> None:
    parts = {"compute_s": 1.0, "network_s": 1.0, "path_s": 1.0} | {largest: 2.0}
    assert Limit(**parts).step_s == 2.0


def linear_limit(cluster: Cluster, samples: int, sample_s: float) -> Limit:
    """A Linear layer of 1,000 x 1,000, 4 MB, whose gradient of one sample takes 8 kB as factors."""
    model = graph(flops=2e6, param_bytes=4_000_000, shapes=((1000, 1000),))
    return step_limit([sample_s] * 4, cluster, model, global_batch=samples)


def test_a_linear_layer_of_many_rows_must_pass_whole() -> None:
    """The devices need 10 ms together, and 40 ms alone."""
    assert linear_limit(MIXED4, 100_000, 4e-7).network_s == pytest.approx(4e6 / 125e6)


def test_a_linear_layer_of_few_rows_passes_as_factors() -> None:
    """64 samples over four equal links: a rank with b of them receives the other 64 - b; least where all have 16. Three
    ranks compute for 3.2 ms.
    """
    assert linear_limit(MIXED4, 64, 1.5e-4).network_s == pytest.approx(48 * 8000 / 125e6)


def test_behind_a_slow_link_more_samples_mean_fewer_bytes_to_receive() -> None:
    """25 MB/s against 125: by brute force over sets of hosts and splits, of like hosts alike."""
    cluster, sample_s = load_cluster("slow-link4"), 4e-4
    speeds = [host.link.up_bytes_per_s for host in cluster.hosts if host.link is not None]

    def took(split: tuple[float, ...]) -> float:
        rows = (max(max(b, 64 - b) * 8000 / speed, b * sample_s) for b, speed in zip(split, speeds, strict=True) if b)
        return max(rows) if sum(map(bool, split)) > 1 else 64 * sample_s

    grid = [k / 100 for k in range(1, 2134)]
    best = min(
        *(took((x, x, x, 64 - 3 * x)) for x in grid),
        *(took((x, x, 0, 64 - 2 * x)) for x in grid),
        *(took((x, 0, 0, 64 - x)) for x in grid),
        took((64 / 3, 64 / 3, 64 / 3, 0)),
        took((32, 32, 0, 0)),
        took((64, 0, 0, 0)),
    )
    assert linear_limit(cluster, 64, sample_s).network_s == pytest.approx(best, rel=2e-3)
