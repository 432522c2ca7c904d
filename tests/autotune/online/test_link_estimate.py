"""What a look changes: only links that are clearly others, and only then who owns shards."""

from __future__ import annotations

from autotune.online.link_estimate import LinkView
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

STATED = load_cluster("mixed4")
SHARDS = Plan(batch=BatchPlan(samples=(4, 4, 4, 4)), comm=CommPlan(collective="shards"))


def received(*speeds: float) -> list[list[float]]:
    return [[min(speeds[(host - back) % 4], speed) for back in (1, 2, 3)] for host, speed in enumerate(speeds)]


def test_errors_of_a_look_change_nothing() -> None:
    links = LinkView(STATED)
    sight = links.take_in(received(100e6, 125e6, 110e6, 120e6))
    assert (sight.what, sight.ranks) == ("no link carries less than before", ())
    assert links.cluster == STATED
    assert links.owners == ()


def test_a_link_that_dropped_changes_alone() -> None:
    links = LinkView(STATED)
    sight = links.take_in(received(110e6, 25e6, 125e6, 118e6))
    assert sight.ranks == (1,)
    assert [host == stated for host, stated in zip(links.cluster.hosts, STATED.hosts, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert links.with_owners(SHARDS).comm.shares[1] == 0.0
    links.take_in(received(125e6, 26e6, 125e6, 125e6))
    assert links.with_owners(SHARDS).comm.shares[1] == 0.0
    assert links.take_in(received(125e6, 125e6, 125e6, 125e6)).ranks == (1,)
    assert links.with_owners(SHARDS).comm.shares == (0.25,) * 4


def test_where_owners_must_stay_they_do() -> None:
    links = LinkView(STATED, reowns=False)
    links.take_in(received(125e6, 25e6, 125e6, 125e6))
    assert links.owners == ()
