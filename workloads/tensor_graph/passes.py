"""The passes of a placed step: which rank runs which segment for which samples, in which order. Read by runtime and simulator.

A *lane* is a slice of every micro-batch that is on one rank in each group. So an activation passes from the rank of its lane
in one group to the rank of that lane in the next, as rows of a tensor, whatever the shares of the groups are.

The order is that of a list schedule (Graham 1966) in which a pass takes as long as its samples and operations are many: of
the passes that can start earliest the oldest micro-batch goes first, as in 1F1B, and within a micro-batch the pass with the
longest path to the end of the step.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.workloads.blocks import BACKWARD, FORWARD
from autotune.workloads.pass_names import pass_name
from autotune.workloads.plan.op_groups import PlacementPlan
from autotune.workloads.tensor_graph.operations import Operation, Operations
from autotune.workloads.tensor_graph.segments import Segment, cut_segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Samples of a micro-batch that are on one rank in each group."""

    num_samples: int
    ranks: tuple[int, ...]
    """Per group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPass:
    """Forward or backward of one segment for one lane of one micro-batch."""

    kind: str
    segment: int
    lane: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """What one segment sends another for each sample, and gets back."""

    segment: int
    """That reads, or is read."""
    bytes_per_sample: float
    gradient_bytes_per_sample: float | None
    """None: whole numbers and masks, for which nothing is sent back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedPasses:
    """All passes of a step."""

    segments: tuple[Segment, ...]
    lanes: tuple[Lane, ...]
    reads: tuple[tuple[Tensors, ...], ...]
    """Of each segment: the segments that it reads, in the order in which they run."""
    readers: tuple[tuple[Tensors, ...], ...]
    order: tuple[PlacedPass, ...]
    """All passes. What a pass needs comes before it, so the passes of each rank can be run in this order."""

    def rank(self, segment: int, lane: int) -> int:
        return self.lanes[lane].ranks[self.segments[segment].group]

    def names(self) -> dict[tuple[str, int, int], str]:
        """By kind, segment and lane. As in a pipeline, a rank is a replica of the segment and a lane one of its slices."""
        found = {}
        for number, segment in enumerate(self.segments):
            replicas: dict[int, int] = {}
            slices: Counter[int] = Counter()
            for place, lane in enumerate(self.lanes):
                replica = replicas.setdefault(lane.ranks[segment.group], len(replicas))
                for kind in (FORWARD, BACKWARD):
                    found[kind, number, place] = pass_name(kind, number, replica=replica, slice_=slices[replica])
                slices[replica] += 1
        return found


def placed_passes(operations: Operations, group_of_op: Mapping[str, int], placement: PlacementPlan) -> PlacedPasses:
    """`group_of_op`: of every op by its name (`Operations.groups_by_name`)."""
    segments = cut_segments(operations, group_of_op)
    lanes = tuple(Lane(num_samples=count, ranks=ranks) for count, ranks in placement.lanes())
    reads = tuple(tuple(_read(operations, segments, number)) for number in range(len(segments)))
    readers: list[list[Tensors]] = [[] for _ in segments]
    for number, several in enumerate(reads):
        for one in several:
            readers[one.segment].append(replace(one, segment=number))
    made = PlacedPasses(segments=segments, lanes=lanes, reads=reads, readers=tuple(map(tuple, readers)), order=())
    return replace(made, order=tuple(_Lister(made, placement.micro_batches).run()))


def _read(operations: Operations, segments: tuple[Segment, ...], number: int) -> list[Tensors]:
    maker = {name: place for place, one in enumerate(segments) for name in one.gives}
    read: dict[int, list[Operation]] = {}
    for name in segments[number].reads:
        read.setdefault(maker[name], []).append(operations.by_name[name])
    found = []
    for place, several in sorted(read.items()):
        back = [one.bytes_per_sample for one in several if one.has_gradient]
        found.append(
            Tensors(
                segment=place,
                bytes_per_sample=sum(one.bytes_per_sample for one in several),
                gradient_bytes_per_sample=sum(back) if back else None,
            )
        )
    return found


class _Lister:
    """Blocks are numbered lane by lane: the forward passes of the segments, then their backward passes, the last first."""

    def __init__(self, passes: PlacedPasses, num_microbatches: int) -> None:
        self._num, num_segments = num_microbatches, len(passes.segments)
        self._length = 2 * num_segments
        self._blocks: list[tuple[str, int, int]] = []
        self._rank: list[int] = []
        self._work: list[float] = []
        self._before: list[list[int]] = []
        for lane, one in enumerate(passes.lanes):
            base = lane * self._length
            for depth in range(self._length):
                segment = min(depth, self._length - 1 - depth)
                is_forward = depth < num_segments
                self._blocks.append((FORWARD if is_forward else BACKWARD, segment, lane))
                self._rank.append(passes.rank(segment, lane))
                self._work.append((1 if is_forward else 2) * one.num_samples * len(passes.segments[segment].nodes))
                if is_forward:
                    before = [base + near.segment for near in passes.reads[segment]]
                else:
                    before = [base + segment]
                    before += [base + self._length - 1 - near.segment for near in passes.readers[segment]]
                self._before.append(before)
        self._after: list[list[int]] = [[] for _ in self._blocks]
        for block, several in enumerate(self._before):
            for source in several:
                self._after[source].append(block)
        self._tail = [0.0] * len(self._blocks)
        for block in reversed(range(len(self._blocks))):  # readers come later in each lane
            self._tail[block] = self._work[block] + max((self._tail[one] for one in self._after[block]), default=0.0)
        self._next, self._listed = [0] * len(self._blocks), [False] * len(self._blocks)
        self._free = dict.fromkeys(self._rank, 0.0)
        self._end: dict[tuple[int, int], float] = {}
        self._later: dict[int, list[tuple[float, int]]] = {rank: [] for rank in self._free}
        """Per rank: passes by the time from which they can start."""
        self._now: dict[int, list[tuple[int, float, int]]] = {rank: [] for rank in self._free}
        """Per rank: passes that could start before it is free, the first to go first."""
        self._heap: list[tuple[float, int]] = []
        """Ranks by when their next pass starts, or earlier; each counts once, as `_listed_at` says."""
        self._listed_at: dict[int, float] = {}

    def run(self) -> list[PlacedPass]:
        found = []
        for block in range(len(self._blocks)):
            self._enqueue(block)
        while self._heap:
            seen, rank = heapq.heappop(self._heap)
            if self._listed_at.get(rank) != seen:
                continue
            del self._listed_at[rank]
            start = self._start(rank)
            if start is None:
                continue
            if start > seen:
                self._list(rank, start)
                continue
            block = self._take(rank, start)
            (kind, segment, lane), microbatch = self._blocks[block], self._next[block]
            found.append(PlacedPass(kind=kind, segment=segment, lane=lane, microbatch=microbatch))
            self._free[rank] = self._end[block, microbatch] = start + self._work[block]
            self._next[block], self._listed[block] = microbatch + 1, False
            self._list(rank, self._free[rank])
            for other in (block, *self._after[block]):
                self._enqueue(other)
        return found

    def _start(self, rank: int) -> float | None:
        """When the rank's next pass starts."""
        if self._now[rank]:
            return self._free[rank]
        return max(self._free[rank], self._later[rank][0][0]) if self._later[rank] else None

    def _take(self, rank: int, start: float) -> int:
        """The first of the passes that can start then."""
        later, now = self._later[rank], self._now[rank]
        while later and later[0][0] <= start:
            _, block = heapq.heappop(later)
            heapq.heappush(now, (self._next[block], -self._tail[block], block))
        return heapq.heappop(now)[-1]

    def _enqueue(self, block: int) -> None:
        """Put the block's next micro-batch on the list, if what it waits for has been started."""
        microbatch, rank = self._next[block], self._rank[block]
        if self._listed[block] or microbatch == self._num:
            return
        if all(self._next[source] > microbatch for source in self._before[block]):
            self._listed[block] = True
            ready = max((self._end[source, microbatch] for source in self._before[block]), default=0.0)
            heapq.heappush(self._later[rank], (ready, block))
            self._list(rank, max(ready, self._free[rank]))

    def _list(self, rank: int, start: float) -> None:
        if start < self._listed_at.get(rank, math.inf):
            self._listed_at[rank] = start
            heapq.heappush(self._heap, (start, rank))
