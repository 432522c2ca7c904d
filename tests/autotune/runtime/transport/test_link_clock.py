"""Emulated links against closed forms: transfers that share a link are serialized, also from several processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.runtime.transport import link_clock
from autotune.runtime.transport.link_clock import LinkClocks, file_bytes
from autotune.simulate.collectives import all_reduce_latency_s, ring_loads
from autotune.simulate.edge_loads import EdgeLoads, ring_bytes
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import Cluster, load_cluster

GBIT = 125e6
MIXED4, SLOW_LINK4, PAIRS = load_cluster("mixed4"), load_cluster("slow-link4"), load_cluster("two-fast-two-slow")
NUM_RESERVATIONS = 3000

Open = Callable[..., LinkClocks]


@pytest.fixture
def open_clocks() -> Iterator[Open]:
    """Opens the clocks of a cluster several times on one file, as ranks do."""
    paths: dict[str, str] = {}
    opened: list[LinkClocks] = []

    def make(cluster: Cluster = MIXED4) -> LinkClocks:
        if cluster.name not in paths:
            paths[cluster.name] = LinkClocks.create(cluster)
        opened.append(LinkClocks(cluster, paths[cluster.name]))
        return opened[-1]

    yield make
    for clocks in opened:
        clocks.close()
    for path in paths.values():
        Path(path).unlink()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of posts: set `clock.now`."""
    fake = SimpleNamespace(now=0.0)
    fake.monotonic = lambda: fake.now
    monkeypatch.setattr(link_clock, "time", fake)
    return fake


def up(num_bytes: float, host: int = 0) -> EdgeLoads:
    """On a host's uplink: edges of NICs come first."""
    return {2 * host: num_bytes}


def down(num_bytes: float, host: int = 0) -> EdgeLoads:
    return {2 * host + 1: num_bytes}


# --- one link ----------------------------------------------------------------------------------------------------------


def test_a_transfer_takes_bytes_over_bandwidth_from_when_its_sender_is_ready(open_clocks: Open) -> None:
    assert open_clocks().reserve(up(GBIT), 10.0) == pytest.approx(11.0)


def test_two_concurrent_transfers_on_one_link_take_as_long_as_their_bytes_together(open_clocks: Open) -> None:
    clocks = open_clocks()
    assert clocks.reserve(up(GBIT), 0.0) == pytest.approx(1.0)
    assert clocks.reserve(up(2 * GBIT), 0.0) == pytest.approx(3.0)


def test_a_transfer_that_begins_while_another_is_in_flight_waits_for_the_rest_of_it(open_clocks: Open) -> None:
    clocks = open_clocks()
    clocks.reserve(up(GBIT), 0.0)
    assert clocks.reserve(up(GBIT), 0.75) == pytest.approx(2.0)


def test_a_link_that_was_idle_gives_nothing_back(open_clocks: Open) -> None:
    clocks = open_clocks()
    clocks.reserve(up(GBIT), 0.0)
    assert clocks.reserve(up(GBIT), 5.0) == pytest.approx(6.0)


def test_the_two_directions_of_a_host_do_not_slow_each_other(open_clocks: Open) -> None:
    clocks = open_clocks()
    assert clocks.reserve(up(GBIT), 0.0) == pytest.approx(1.0)
    assert clocks.reserve(down(GBIT), 0.0) == pytest.approx(1.0)


def test_links_of_different_hosts_do_not_slow_each_other(open_clocks: Open) -> None:
    clocks = open_clocks()
    for host in range(4):
        assert clocks.reserve(up(GBIT, host), 0.0) == pytest.approx(1.0)


def test_a_transfer_over_several_links_ends_when_the_last_byte_has_arrived(open_clocks: Open) -> None:
    assert open_clocks().reserve(up(GBIT, 0) | down(3 * GBIT, 1), 0.0) == pytest.approx(3.0)


def test_a_slow_host_dominates(open_clocks: Open) -> None:
    """Every link of the ring carries the same bytes; the one at a fifth of the bandwidth takes five times as long."""
    loads = ring_bytes(SLOW_LINK4.topology, range(4), 10_000_000)
    assert open_clocks(SLOW_LINK4).reserve(loads, 0.0) == pytest.approx(15_000_000 / (GBIT / 5))


def test_a_link_that_is_not_emulated_takes_no_time(open_clocks: Open) -> None:
    bare = dataclasses.replace(
        MIXED4, name="bare", hosts=tuple(dataclasses.replace(h, link=None) for h in MIXED4.hosts)
    )
    assert open_clocks(bare).reserve(ring_bytes(bare.topology, range(4), 1e12), 4.0) == 4.0


def test_ranks_that_map_one_file_share_its_clocks(open_clocks: Open) -> None:
    first, second = open_clocks(), open_clocks()
    first.reserve(up(GBIT), 0.0)
    assert second.reserve(up(GBIT), 0.0) == pytest.approx(2.0)


RESERVE_IN_A_PROCESS = """
import sys
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.workloads.cluster import load_cluster
clocks = LinkClocks(load_cluster("mixed4"), sys.argv[1])
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    clocks.reserve({0: 125.0}, 0.0)
"""


def test_transfers_of_two_processes_at_once_take_as_long_as_their_bytes_together(tmp_path: Path) -> None:
    """Six thousand microseconds in total: a lost update makes the sum smaller."""
    path = LinkClocks.create(MIXED4)
    command = [sys.executable, "-c", RESERVE_IN_A_PROCESS, path, str(NUM_RESERVATIONS)]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
        clocks = LinkClocks(MIXED4, path)
        end_s = clocks.reserve(up(0.125), 0.0)
        clocks.close()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        Path(path).unlink()
    assert end_s == pytest.approx(2 * NUM_RESERVATIONS * 1e-6, rel=1e-6)


# --- ring loads --------------------------------------------------------------------------------------------------------


def loads(host_of_rank: tuple[int, ...], num_bytes: int = 1000) -> list[tuple[int, float, float]]:
    return [(load.host, load.up_bytes, load.down_bytes) for load in ring_loads(host_of_rank, num_bytes)]


def test_a_ring_over_four_hosts_sends_one_and_a_half_times_the_bytes_over_every_link() -> None:
    """2(N-1)/N = 1.5 for four ranks, one edge out of and one into every host."""
    assert loads((0, 1, 2, 3)) == [(host, 1500.0, 1500.0) for host in range(4)]


def test_two_neighbouring_ranks_of_a_host_use_its_link_once() -> None:
    """0 -> 0 and 1 -> 1 stay inside; 0 -> 1 and 1 -> 0 cross."""
    assert loads((0, 0, 1, 1)) == [(0, 1500.0, 1500.0), (1, 1500.0, 1500.0)]


def test_ranks_that_alternate_between_hosts_use_every_link_twice() -> None:
    assert loads((0, 1, 0, 1)) == [(0, 3000.0, 3000.0), (1, 3000.0, 3000.0)]


def test_three_ranks_on_two_hosts() -> None:
    """2 · 2/3 of 900 bytes per edge; 0 -> 0 stays, 0 -> 1 and 1 -> 0 cross."""
    assert loads((0, 0, 1), 900) == [(0, 1200.0, 1200.0), (1, 1200.0, 1200.0)]


def test_two_ranks_send_each_other_all_bytes_once() -> None:
    assert loads((0, 1)) == [(0, 1000.0, 1000.0), (1, 1000.0, 1000.0)]


@pytest.mark.parametrize("host_of_rank", [(0,), (0, 0), (0, 0, 0, 0)])
def test_ranks_of_one_host_use_no_link(host_of_rank: tuple[int, ...]) -> None:
    assert loads(host_of_rank) == [(0, 0.0, 0.0)]


def test_what_leaves_all_hosts_enters_all_hosts() -> None:
    for host_of_rank in [(0, 1, 2), (0, 0, 1, 2, 2), (0, 1, 1, 0, 2, 2, 1)]:
        found = loads(host_of_rank)
        assert sum(sent for _, sent, _ in found) == pytest.approx(sum(received for _, _, received in found))


def test_the_latency_of_a_ring_is_its_hops_one_after_the_other() -> None:
    assert all_reduce_latency_s("ring", MIXED4) == pytest.approx(2 * 3 * 50e-6)
    assert all_reduce_latency_s("ring", MIXED4.for_ranks(2)) == pytest.approx(2 * 50e-6)


def test_the_slowest_host_sets_the_latency() -> None:
    link = MIXED4.hosts[1].link
    assert link is not None
    far = dataclasses.replace(MIXED4.hosts[1], link=dataclasses.replace(link, latency_s=0.01))
    assert all_reduce_latency_s("ring", dataclasses.replace(MIXED4, hosts=(MIXED4.hosts[0], far))) == pytest.approx(
        0.02
    )


def test_one_host_alone_has_no_latency() -> None:
    assert all_reduce_latency_s("ring", PAIRS.for_ranks(2)) == 0.0


# --- collectives -------------------------------------------------------------------------------------------------------


def join_all(clocks: LinkClocks, clock: SimpleNamespace, sequence: int, times: tuple[float, ...]) -> None:
    for rank, now in enumerate(times):
        clock.now = now
        clocks.post(sequence, rank)


def test_a_collective_begins_when_its_last_rank_has_joined(open_clocks: Open, clock: SimpleNamespace) -> None:
    clocks = open_clocks()
    join_all(clocks, clock, 0, (1.0, 4.0, 2.0, 3.0))
    assert clocks.finish_collective(0, 1, up(GBIT), 0.5) == pytest.approx((4.0, 5.5))


def test_the_first_call_reserves_and_the_others_return_the_same(open_clocks: Open, clock: SimpleNamespace) -> None:
    ranks = [open_clocks() for _ in range(4)]
    join_all(ranks[0], clock, 0, (1.0, 1.0, 1.0, 1.0))
    ends = [rank.finish_collective(0, 1, up(GBIT), 0.0) for rank in ranks]
    assert ends == [pytest.approx((1.0, 2.0))] * 4
    assert ranks[0].reserve(up(GBIT), 0.0) == pytest.approx(3.0)


def test_collectives_that_follow_one_another_queue_on_the_links(open_clocks: Open, clock: SimpleNamespace) -> None:
    """Three buckets posted at once arrive one after another."""
    clocks = open_clocks()
    for sequence in range(3):
        join_all(clocks, clock, sequence, (0.0, 0.0, 0.0, 0.0))
    ends = [clocks.finish_collective(sequence, sequence + 1, up(GBIT), 0.0)[1] for sequence in range(3)]
    assert ends == pytest.approx([1.0, 2.0, 3.0])


def test_latency_delays_a_collective_without_keeping_its_link_busy(open_clocks: Open, clock: SimpleNamespace) -> None:
    clocks = open_clocks()
    for sequence in range(2):
        join_all(clocks, clock, sequence, (0.0, 0.0, 0.0, 0.0))
    ends = [clocks.finish_collective(sequence, sequence + 1, up(GBIT), 10.0)[1] for sequence in range(2)]
    assert ends == pytest.approx([11.0, 12.0])


def test_a_new_group_counts_from_zero_again_and_is_not_taken_for_the_old(
    open_clocks: Open, clock: SimpleNamespace
) -> None:
    """The key contains the epoch: the same sequence number with another key is another collective."""
    clocks = open_clocks()
    join_all(clocks, clock, 0, (0.0, 0.0, 0.0, 0.0))
    clocks.finish_collective(0, (1 << 24) + 1, up(GBIT), 0.0)
    join_all(clocks, clock, 0, (9.0, 9.0, 9.0, 9.0))
    assert clocks.finish_collective(0, (2 << 24) + 1, up(GBIT), 0.0) == pytest.approx((9.0, 10.0))


def test_a_slot_is_used_again_after_all_others(open_clocks: Open, clock: SimpleNamespace) -> None:
    clocks = open_clocks()
    for sequence in (0, link_clock._SLOTS, 2 * link_clock._SLOTS):
        join_all(clocks, clock, sequence, (float(sequence),) * 4)
        start_s, end_s = clocks.finish_collective(sequence, sequence + 1, up(GBIT), 0.0)
        assert (start_s, end_s) == pytest.approx((sequence, sequence + 1))


def test_the_last_slot_is_inside_the_file(open_clocks: Open, clock: SimpleNamespace) -> None:
    clocks = open_clocks()
    last = link_clock._SLOTS - 1
    join_all(clocks, clock, last, (1.0, 1.0, 1.0, 2.0))
    assert clocks.finish_collective(last, 1, {}, 0.0) == (2.0, 2.0)


def test_slots_and_clocks_do_not_overlap(open_clocks: Open, clock: SimpleNamespace) -> None:
    """Posts in the first slots do not occupy links."""
    clocks = open_clocks()
    for sequence in range(3):
        join_all(clocks, clock, sequence, (100.0,) * 4)
    assert clocks.reserve(up(GBIT, 3) | down(GBIT, 3), 0.0) == pytest.approx(1.0)


def test_a_new_file_has_room_for_every_slot_and_no_link_is_busy(open_clocks: Open) -> None:
    path = Path(LinkClocks.create(MIXED4))
    try:
        assert path.stat().st_size == file_bytes(MIXED4) == 8 * (2 * 4 + 4096 * (2 + 4))
        assert not any(path.read_bytes())
    finally:
        path.unlink()


# --- a scenario changes the links --------------------------------------------------------------------------------------


def test_links_get_the_speeds_of_the_cluster_that_is_set(open_clocks: Open) -> None:
    clocks = open_clocks(MIXED4)
    clocks.set_links(ChangingCluster(MIXED4, load_scenario("link-drop")).at(40))
    assert clocks.reserve(up(GBIT, host=1), 0.0) == pytest.approx(5.0)
    assert clocks.reserve(up(GBIT, host=2), 0.0) == pytest.approx(1.0)
    clocks.set_links(MIXED4)
    assert clocks.reserve(up(GBIT, host=1), 5.0) == pytest.approx(6.0)
