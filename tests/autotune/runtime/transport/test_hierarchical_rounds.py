"""The rounds of hierarchical all-reduces: carried out as arithmetic, and their bytes on each edge against the simulator's."""

from __future__ import annotations

import random

import pytest

from autotune.runtime.transport.hierarchical_rounds import HostTree
from autotune.simulate.collectives import host_shares, sum_phases
from autotune.simulate.edge_loads import hop_bytes, merged
from autotune.workloads.plan import CommPlan
from tests.autotune.simulate.test_edge_loads import tree

COUNTS = [(1,), (4,), (1, 1), (2, 2), (4, 4), (2, 2, 2), (1, 3), (2, 3, 4), (4, 1, 1), (8, 6)]
BYTES = 4


def tree_of(cluster, collective):
    shares = dict(enumerate(host_shares([1] * len(cluster.hosts), cluster)))
    return HostTree.of(cluster.topology, None if collective == "hierarchical" else shares)


def carried_out(host_tree, num_elements):
    """Every rank's tensor after all rounds, each element being the set of the ranks that it is a sum of."""
    size = sum(map(len, host_tree.hosts))
    tensors = [[[rank] for _ in range(num_elements)] for rank in range(size)]
    rounds = [[one for phase in host_tree.phases(rank, num_elements, BYTES) for one in phase] for rank in range(size)]
    sent, at, tags = {}, [0] * size, host_tree.num_tags(num_elements, BYTES)

    def deliver(rank, one):
        for message in one.sends:
            if (rank, at[rank], "sent") not in sent:
                key = (rank, message.peer, message.tag)
                assert key not in sent, "a tag is used twice between two ranks"
                assert 0 <= message.tag < tags
                sent[key] = [list(value) for value in tensors[rank][message.start : message.stop]]
        sent[rank, at[rank], "sent"] = []
        if any((message.peer, rank, message.tag) not in sent for message in (*one.adds, *one.writes)):
            return False
        for message in (*one.adds, *one.writes):
            values = sent[message.peer, rank, message.tag]
            assert len(values) == message.stop - message.start
            for offset, value in enumerate(values):
                now = tensors[rank][message.start + offset]
                now[:] = now + value if message in one.adds else value
        return True

    while any(place < len(mine) for place, mine in zip(at, rounds, strict=True)):
        moved = False
        for rank in range(size):
            while at[rank] < len(rounds[rank]) and deliver(rank, rounds[rank][at[rank]]):
                at[rank] += 1
                moved = True
        assert moved, "all ranks wait for one another"
    return tensors


@pytest.mark.parametrize("collective", ["hierarchical", "hierarchical-shards"])
@pytest.mark.parametrize("counts", COUNTS)
def test_every_element_becomes_the_sum_of_every_rank_once(counts, collective):
    cluster = tree(counts, islands=((0, 2), (1, 3)) if set(counts) == {4} else ())
    for num_elements in (0, 1, 2, 5, 24, 101):
        for tensor in carried_out(tree_of(cluster, collective), num_elements):
            assert all(sorted(value) == list(range(sum(counts))) for value in tensor)


def test_trees_with_uneven_links():
    """Hosts that own nothing, and owners of several chunks."""
    draw = random.Random(7)
    for _ in range(20):
        counts = [draw.choice((1, 2, 3)) for _ in range(draw.choice((2, 3)))]
        shares = [draw.choice((0.0, draw.random())) for _ in counts]
        shares[draw.randrange(len(shares))] += 1.0
        owned = {number: share / sum(shares) for number, share in enumerate(shares)}
        host_tree = HostTree.of(tree(counts).topology, owned)
        for tensor in carried_out(host_tree, 53):
            assert all(sorted(value) == list(range(sum(counts))) for value in tensor)


@pytest.mark.parametrize("collective", ["hierarchical", "hierarchical-shards"])
@pytest.mark.parametrize("counts", COUNTS[1:])
def test_the_bytes_on_each_edge_are_those_that_are_predicted(counts, collective):
    """Phase by phase, over a number of elements that all cuts divide."""
    num_elements = 48 * 7 * 1000
    cluster = tree(counts, total=1e9)
    host_tree = tree_of(cluster, collective)
    found = [[], [], []]
    for rank in range(sum(counts)):
        for place, phase in enumerate(host_tree.phases(rank, num_elements, BYTES)):
            found[place] += [
                hop_bytes(cluster.topology, rank, message.peer, (message.stop - message.start) * BYTES)
                for one in phase
                for message in one.sends
            ]
    predicted = sum_phases(CommPlan(collective=collective), cluster, num_elements * BYTES)
    for ours, theirs in zip(found, predicted, strict=True):
        total = merged(ours)
        assert total.keys() == {edge for edge, num_bytes in theirs.items() if num_bytes}
        assert total == pytest.approx({edge: theirs[edge] for edge in total}, rel=1e-4)


def test_chunks_of_owner_shards_have_tags_of_their_own():
    host_tree = tree_of(tree([2, 2]), "hierarchical-shards")
    elements = 3 * (1 << 19)
    rounds = host_tree.phases(0, elements, BYTES)[1]
    assert len(rounds) > 2
    sent = [(message.peer, message.tag) for one in rounds for message in one.sends]
    assert len(set(sent)) == len(sent)
    assert max(tag for _, tag in sent) < host_tree.num_tags(elements, BYTES)
