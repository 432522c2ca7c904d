"""Which messages a rank exchanges in a hierarchical all-reduce: three phases of rounds, for one tensor. Data only.

1. **Inside**: a ring reduce-scatter over the ranks of a host; the rank at place p gets the host's sum of shard p.
2. **Across**: the holders of each piece, one per host, sum it by a ring or by owner shards of hosts. Where hosts have unlike
   numbers of ranks, a piece is what all of them hold in one shard (`edge_loads.bounded_pieces`), and a rank holds several.
3. **Inside** again: a ring all-gather.

So each byte of a host crosses its NIC once per host, however many ranks it has (Goyal et al. 2017; NCCL's and Horovod's
hierarchical all-reduce have a ring or tree of one leader each, which would use one NIC of several). Owner shards are cut into chunks,
so that sums of the first go back while slices of the next come in. The bytes on each edge are those of
`edge_loads.hierarchical_bytes`: the simulator and this read the same pieces and shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from autotune.simulate.edge_loads import bounded_pieces, by_host
from autotune.workloads.topology import Topology

_CHUNK_BYTES = 1 << 19
"""Of an owner's slice, as in `shard_group`."""


@dataclass(frozen=True, slots=True)
class Message:
    """A slice of the tensor, to or from another rank."""

    peer: int
    tag: int
    """Counted from 0 in each all-reduce; the same at both ends."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that wait for the rounds before them: all are sent, then what is received is added or written."""

    sends: tuple[Message, ...] = ()
    adds: tuple[Message, ...] = ()
    writes: tuple[Message, ...] = ()


Phase = tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tensor in one ring or exchange: what its members cut among themselves."""

    members: tuple[int, ...]
    cuts: tuple[int, ...]
    """One more than members: member i has the elements from cuts[i] to cuts[i + 1]."""
    tag: int
    """Of its first round."""
    step: int
    """From a round's tag to the next one's."""


@dataclass(frozen=True, slots=True)
class HostTree:
    """What all all-reduces over the same ranks have in common."""

    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host, hosts and ranks in ring order."""
    shares: tuple[float, ...] | None
    """What each host owns across; None: a ring."""

    @staticmethod
    def of(topology: Topology, shares: Mapping[int, float] | None) -> HostTree:
        """Over all ranks. `shares`: by number of the host."""
        hosts = by_host(topology, range(len(topology.places)))
        owned = None if shares is None else tuple(shares[host] for host in hosts)
        return HostTree(tuple(tuple(ranks) for ranks in hosts.values()), owned)

    @property
    def _most_inside(self) -> int:
        """Rounds within the largest host."""
        return max(map(len, self.hosts)) - 1

    def phases(self, rank: int, num_elements: int, element_bytes: int) -> tuple[Phase, Phase, Phase]:
        """The rounds of `rank`; a round's tags are below `num_tags`."""
        own = next(ranks for ranks in self.hosts if rank in ranks)
        cuts = tuple(num_elements * place // len(own) for place in range(len(own) + 1))
        inside = Part(own, cuts, 0, 1)
        across = [self._across(rank, part, element_bytes) for part in self._parts(rank, num_elements)]
        gather = Part(own, cuts, self.num_tags(num_elements, element_bytes) - self._most_inside, 1)
        return tuple(reduce_scatter(rank, inside)), merged(across), tuple(all_gather(rank, gather))

    def num_tags(self, num_elements: int, element_bytes: int) -> int:
        """The same on every rank."""
        return 2 * self._most_inside + len(bounded_pieces(self.hosts)) * self._across_tags(num_elements, element_bytes)

    def _across_tags(self, num_elements: int, element_bytes: int) -> int:
        """Of one piece."""
        if self.shares is None:
            return 2 * (len(self.hosts) - 1)
        return 2 * max(math.ceil(num_elements * element_bytes / _CHUNK_BYTES), 1)

    def _parts(self, rank: int, num_elements: int) -> Iterator[Part]:
        """The pieces that `rank` holds, each cut among its holders."""
        found = bounded_pieces(self.hosts)
        shares = self.shares or (1 / len(self.hosts),) * len(self.hosts)
        for number, (holders, start, end) in enumerate(found):
            if rank in holders:
                first, last = int(start * num_elements), int(end * num_elements)
                owned = [min(round(share * (last - first)), last - first) for share in accumulate(shares, initial=0.0)]
                whole = max(place for place, share in enumerate(shares) if share > 0)
                cuts = (*(first + at for at in owned[: whole + 1]), *[last] * (len(shares) - whole))
                yield Part(tuple(holders), cuts, self._most_inside + number, len(found))

    def _across(self, rank: int, part: Part, element_bytes: int) -> Phase:
        if self.shares is not None:
            return tuple(owner_sum(rank, part, element_bytes))
        after = Part(part.members, part.cuts, part.tag + (len(part.members) - 1) * part.step, part.step)
        return (*reduce_scatter(rank, part), *all_gather(rank, after))


def reduce_scatter(rank: int, part: Part) -> Iterator[Round]:
    """A ring, after which the member at place p has the sum of what it cuts for itself."""
    size, place = len(part.members), part.members.index(rank)
    for number in range(size - 1):
        yield Round(
            sends=_ring_message(part, place + 1, place - 1 - number, number),
            adds=_ring_message(part, place - 1, place - 2 - number, number),
        )


def all_gather(rank: int, part: Part) -> Iterator[Round]:
    """A ring that hands on what each member has."""
    size, place = len(part.members), part.members.index(rank)
    for number in range(size - 1):
        yield Round(
            sends=_ring_message(part, place + 1, place - number, number),
            writes=_ring_message(part, place - 1, place - 1 - number, number),
        )


def _ring_message(part: Part, peer: int, owner: int, number: int) -> tuple[Message, ...]:
    size = len(part.members)
    start, stop = part.cuts[owner % size], part.cuts[owner % size + 1]
    return (Message(part.members[peer % size], part.tag + number * part.step, start, stop),) if stop > start else ()


def owner_sum(rank: int, part: Part, element_bytes: int) -> Iterator[Round]:
    """Every member sends each other one its slice and gets the sum: see `shard_group`, of which this has the order."""
    place = part.members.index(rank)
    others = [(place + step) % len(part.members) for step in range(1, len(part.members))]
    chunks = _chunks(part.cuts, element_bytes)

    def of(owner: int, number: int, peer: int, phase: int) -> tuple[Message, ...]:
        start, stop = chunks[number][owner]
        tag = part.tag + (2 * number + phase) * part.step
        return (Message(part.members[peer], tag, start, stop),) if stop > start else ()

    slices = tuple(m for number in range(len(chunks)) for other in others for m in of(other, number, other, 0))
    sums = tuple(m for number in range(len(chunks)) for other in others for m in of(other, number, other, 1))
    back: tuple[Message, ...] = slices
    for number in range(len(chunks)):
        yield Round(sends=back, adds=tuple(m for other in sorted(others) for m in of(place, number, other, 0)))
        back = tuple(m for other in others for m in of(place, number, other, 1))
    yield Round(sends=back, writes=sums)


def _chunks(cuts: Sequence[int], element_bytes: int) -> list[list[tuple[int, int]]]:
    """For each chunk, the bounds of each owner's slice."""
    owned = list(pairwise(cuts))
    count = max(math.ceil(max(stop - start for start, stop in owned) * element_bytes / _CHUNK_BYTES), 1)
    return [
        [(start + (stop - start) * at // count, start + (stop - start) * (at + 1) // count) for start, stop in owned]
        for at in range(count)
    ]


def merged(several: Sequence[Phase]) -> Phase:
    """Phases side by side, round by round."""
    length = max(map(len, several), default=0)
    filled = [(*rounds, *[Round()] * (length - len(rounds))) for rounds in several]
    return tuple(
        Round(
            sends=tuple(message for one in rounds for message in one.sends),
            adds=tuple(message for one in rounds for message in one.adds),
            writes=tuple(message for one in rounds for message in one.writes),
        )
        for rounds in zip(*filled, strict=True)
    )
