"""A link probe updates only links that clearly changed, and owner shares only then."""

from __future__ import annotations

from autotune.online.link_estimate import LinkEstimate
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan

STATED = load_cluster("mixed4")
SHARDS = Plan(batch=BatchPlan(samples=(4, 4, 4, 4)), comm=CommPlan(collective="shards"))


def received(*speeds: float) -> list[list[float]]:
    return [[min(speeds[(host - back) % 4], speed) for back in (1, 2, 3)] for host, speed in enumerate(speeds)]


def test_errors_of_a_link_probe_change_nothing() -> None:
    links = LinkEstimate(STATED)
    finding = links.update(received(100e6, 125e6, 110e6, 120e6))
    assert (finding.what, finding.ranks) == ("no link carries less than before", ())
    assert links.cluster == STATED
    assert links.owners == ()


def test_a_link_that_dropped_changes_alone() -> None:
    links = LinkEstimate(STATED)
    finding = links.update(received(110e6, 25e6, 125e6, 118e6))
    assert finding.ranks == (1,)
    assert [host == stated for host, stated in zip(links.cluster.hosts, STATED.hosts, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert links.with_owners(SHARDS).comm.shares[1] == 0.0
    links.update(received(125e6, 26e6, 125e6, 125e6))
    assert links.with_owners(SHARDS).comm.shares[1] == 0.0
    assert links.update(received(125e6, 125e6, 125e6, 125e6)).ranks == (1,)
    assert links.with_owners(SHARDS).comm.shares == (0.25,) * 4


def test_owners_stay_if_they_must() -> None:
    links = LinkEstimate(STATED, may_reown=False)
    links.update(received(125e6, 25e6, 125e6, 125e6))
    assert links.owners == ()
