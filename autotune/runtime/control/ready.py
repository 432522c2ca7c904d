"""Ready rounds and scheduled partitions, and how they travel: fixed binary fields, joined on the way up the tree of ranks.

A rank tells its parent that a round is ready once all ranks below it have it ready: one message per round and connection.
Sizes and positions are one number while all ranks agree, and one per rank only where they differ. A schedule names a round
once, with its first partition; after that a run of partitions is a few bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_READY = struct.Struct("<IIBQIIIII")
_ROUND = struct.Struct("<BIIIQII")
_RUN, _SHORT_RUN = struct.Struct("<BIIII"), struct.Struct("<BHBHH")
_IS_ROUND, _IS_RUN, _IS_SHORT_RUN = 1, 2, 3
_MOST_BUFFERS, _MOST_ROUNDS, _MOST_PARTITIONS = 1 << 16, 1 << 8, 1 << 16
"""In the short form of a run."""


@dataclass(frozen=True, slots=True)
class ReadyRound:
    """One rank has a round of a buffer ready for the wire."""

    buffer: int
    round: int
    num_bytes: int
    num_elements: int
    cuttable: bool
    """Whether it may be sent in partitions: a sum, of the same size on every rank."""
    unused: Sequence[int] = ()
    """Parameters of the buffer, by place, that have no gradient on this rank."""
    position: int = 0
    """Of this rank in the script; all ranks must be at the same one."""


@dataclass(frozen=True, slots=True)
class ReadyRanks:
    """A round that consecutive ranks have ready."""

    buffer: int
    round: int
    cuttable: bool
    num_bytes: int
    """Of one rank where it is cuttable; else of all these ranks."""
    first_rank: int
    num_ranks: int
    sizes: tuple[int, ...]
    """Elements on each rank; one number if they are equal."""
    positions: tuple[int, ...]
    """Of each rank; one number if they are equal."""
    unused: tuple[int, ...]
    """Parameters of the buffer that have a gradient on none of these ranks."""

    @classmethod
    def of(cls, rank: int, ready: ReadyRound) -> ReadyRanks:
        return cls(
            buffer=ready.buffer,
            round=ready.round,
            cuttable=ready.cuttable,
            num_bytes=ready.num_bytes,
            first_rank=rank,
            num_ranks=1,
            sizes=(ready.num_elements,),
            positions=(ready.position,),
            unused=tuple(ready.unused),
        )

    @classmethod
    def join(cls, parts: Sequence[ReadyRanks]) -> ReadyRanks:
        """Of neighbouring ranges of ranks, in any order."""
        parts = sorted(parts, key=lambda part: part.first_rank)
        first = parts[0]
        unused = set(first.unused).intersection(*(part.unused for part in parts[1:])) if first.unused else ()
        return cls(
            buffer=first.buffer,
            round=first.round,
            cuttable=first.cuttable,
            num_bytes=first.num_bytes if first.cuttable else sum(part.num_bytes for part in parts),
            first_rank=first.first_rank,
            num_ranks=sum(part.num_ranks for part in parts),
            sizes=_joined([(part.sizes, part.num_ranks) for part in parts]),
            positions=_joined([(part.positions, part.num_ranks) for part in parts]),
            unused=tuple(sorted(unused)),
        )

    def pack(self) -> bytes:
        head = _READY.pack(
            self.buffer,
            self.round,
            self.cuttable,
            self.num_bytes,
            self.first_rank,
            self.num_ranks,
            len(self.sizes),
            len(self.positions),
            len(self.unused),
        )
        return head + _numbers(self.sizes) + _numbers(self.positions) + _numbers(self.unused)

    @classmethod
    def unpack(cls, data: bytes, start: int = 0) -> ReadyRanks:
        buffer, number, cuttable, num_bytes, first, num_ranks, *counts = _READY.unpack_from(data, start)
        start += _READY.size
        lists = []
        for count in counts:
            lists.append(struct.unpack_from(f"<{count}Q", data, start))
            start += 8 * count
        return cls(buffer, number, bool(cuttable), num_bytes, first, num_ranks, lists[0], lists[1], lists[2])


@dataclass(frozen=True, slots=True)
class ScheduledPartition:
    """A partition that every rank may post now, after all partitions scheduled before it."""

    buffer: int
    round: int
    partition: int
    num_partitions: int
    """Of this round."""
    round_bytes: int
    """Of the whole round."""
    sizes: Sequence[int]
    """Elements of the round on each rank; one number if they are equal."""
    unused: Sequence[int]
    """Parameters of the buffer that have a gradient on no rank."""

    @property
    def num_bytes(self) -> int:
        """What it takes of the credit."""
        before = self.round_bytes * self.partition // self.num_partitions
        return self.round_bytes * (self.partition + 1) // self.num_partitions - before

    def size_on(self, rank: int) -> int:
        """Elements of the round on a rank."""
        return self.sizes[rank if len(self.sizes) > 1 else 0]


class ReadyRounds:
    """Collects a round from the ranks of a subtree. Not thread-safe: its owner holds a lock around it."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._parts: dict[tuple[int, int], list[ReadyRanks]] = {}

    def add(self, part: ReadyRanks) -> ReadyRanks | None:
        """The round, once all ranks of the subtree have it ready."""
        if part.num_ranks == self._num_ranks:
            return part
        key = (part.buffer, part.round)
        parts = self._parts.setdefault(key, [])
        parts.append(part)
        if sum(one.num_ranks for one in parts) < self._num_ranks:
            return None
        del self._parts[key]
        return ReadyRanks.join(parts)


def pack_schedule(scheduled: Sequence[ScheduledPartition]) -> bytes:
    """Partitions in the order in which they are posted."""
    if len(scheduled) == 1 and scheduled[0].partition > 0:  # most messages, once the credit is used up
        return _pack_run(scheduled[0], 1)
    parts: list[bytes] = []
    index = 0
    while index < len(scheduled):
        first = scheduled[index]
        end = index + 1
        while end < len(scheduled) and _follows(scheduled[end - 1], scheduled[end]):
            end += 1
        if first.partition == 0:
            parts.append(_pack_round(first))
        parts.append(_pack_run(first, end - index))
        index = end
    return b"".join(parts)


class ScheduleReader:
    """Reads schedules; remembers the rounds whose partitions have not all been scheduled. One thread calls it."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, int], tuple[int, int, tuple[int, ...], tuple[int, ...]]] = {}

    def read(self, data: bytes, start: int = 0) -> Iterator[ScheduledPartition]:
        while start < len(data):
            kind = data[start]
            if kind == _IS_ROUND:
                start = self._read_round(data, start)
                continue
            form = _SHORT_RUN if kind == _IS_SHORT_RUN else _RUN
            _, buffer, number, first, count = form.unpack_from(data, start)
            start += form.size
            num_partitions, round_bytes, sizes, unused = self._rounds[buffer, number]
            if first + count == num_partitions:
                del self._rounds[buffer, number]
            for index in range(first, first + count):
                yield ScheduledPartition(buffer, number, index, num_partitions, round_bytes, sizes, unused)

    def _read_round(self, data: bytes, start: int) -> int:
        _, buffer, number, count, round_bytes, num_sizes, num_unused = _ROUND.unpack_from(data, start)
        start += _ROUND.size
        sizes = struct.unpack_from(f"<{num_sizes}Q", data, start)
        start += 8 * num_sizes
        self._rounds[buffer, number] = (count, round_bytes, sizes, struct.unpack_from(f"<{num_unused}Q", data, start))
        return start + 8 * int(num_unused)


def _pack_round(one: ScheduledPartition) -> bytes:
    counts = len(one.sizes), len(one.unused)
    head = _ROUND.pack(_IS_ROUND, one.buffer, one.round, one.num_partitions, one.round_bytes, *counts)
    return head + _numbers(one.sizes) + _numbers(one.unused)


def _pack_run(first: ScheduledPartition, count: int) -> bytes:
    if first.buffer < _MOST_BUFFERS and first.round < _MOST_ROUNDS and first.num_partitions < _MOST_PARTITIONS:
        return _SHORT_RUN.pack(_IS_SHORT_RUN, first.buffer, first.round, first.partition, count)
    return _RUN.pack(_IS_RUN, first.buffer, first.round, first.partition, count)


def _follows(one: ScheduledPartition, after: ScheduledPartition) -> bool:
    return (after.buffer, after.round, after.partition) == (one.buffer, one.round, one.partition + 1)


def _joined(parts: Sequence[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """The numbers of several ranges of ranks: one if all are equal."""
    value = parts[0][0][0]
    if all(one == (value,) for one, _ in parts):
        return (value,)
    return tuple(number for one, count in parts for number in (one * count if len(one) == 1 else one))


def _numbers(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values) if values else b""
