"""Tables of costs on one cluster: ops, data, updates, codecs, collectives, memory. `cost_sources` fills them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.results.store.forecast import Origin
from autotune.simulate.data_parallel import between_points, pass_seconds
from autotune.simulate.task_graph import Floats, Ints
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Measured seconds: exact at a measured number of samples, interpolated between two, not used beyond the first and last."""

    num: Ints
    """Per rank; 0: nothing was measured."""
    samples: Floats
    """Per rank, ascending."""
    seconds: Floats
    """Per rank, op and number of samples."""

    def replace(self, fitted: Floats, samples: Floats) -> None:
        """Put measured values in place of fitted ones (ranks, ops)."""
        between_points(fitted, self.num, self.samples, self.seconds, samples)

    def part(self, ranks: Ints) -> Points:
        return Points(num=self.num[ranks], samples=self.samples[ranks], seconds=self.seconds[ranks])


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTimes:
    """Coefficients of `autotune.simulate.roofline.line_s`, one table each. Rows are ranks, columns ops."""

    arithmetic_s: Floats
    fixed_s: Floats
    per_sample_s: Floats
    launch_s: Floats
    points: Points | None = None

    def seconds(self, samples: Floats) -> Floats:
        taken: Floats = pass_seconds(self.arithmetic_s, self.fixed_s, self.per_sample_s, self.launch_s, samples)
        if self.points is not None:
            self.points.replace(taken, samples)
        return taken

    def part(self, ranks: Ints) -> OpTimes:
        return OpTimes(
            arithmetic_s=self.arithmetic_s[ranks],
            fixed_s=self.fixed_s[ranks],
            per_sample_s=self.per_sample_s[ranks],
            launch_s=self.launch_s[ranks],
            points=self.points and self.points.part(ranks),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """fixed + slope · x, one line per rank."""

    fixed_s: Floats
    slope_s: Floats
    points: Points | None = None

    def at(self, x: Floats) -> Floats:
        taken: Floats = self.fixed_s + self.slope_s * x
        if self.points is not None:
            self.points.replace(taken.reshape(-1, 1), x)
        return taken

    def table(self, x: Floats) -> Floats:
        """Every rank at every x."""
        taken: Floats = self.fixed_s[:, None] + self.slope_s[:, None] * x[None, :]
        return taken

    def part(self, ranks: Ints) -> Lines:
        return Lines(
            fixed_s=self.fixed_s[ranks],
            slope_s=self.slope_s[ranks],
            points=self.points and self.points.part(ranks),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportCosts:
    """Overhead of an all-reduce over one transport, beyond the time of its bytes on the links."""

    sizes: Floats
    overhead_s: Floats
    """At each of the sizes; interpolated between them, extrapolated with the slope of the last two."""
    slots: int = 1
    """Concurrent collectives of the transport."""
    serial_sizes: Floats = field(default_factory=lambda: np.zeros(0))
    serial_s: Floats = field(default_factory=lambda: np.zeros(0))
    """The part of the overhead that all-reduces in flight pay one after another, at each of these sizes; constant beyond."""

    def overhead(self, num_bytes: Floats) -> Floats:
        inside: Floats = np.interp(num_bytes, self.sizes, self.overhead_s)
        if len(self.sizes) < 2:
            return inside
        slope = (self.overhead_s[-1] - self.overhead_s[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond: Floats = np.maximum(num_bytes - self.sizes[-1], 0.0)
        return inside + max(float(slope), 0.0) * beyond

    def serial(self, num_bytes: Floats) -> Floats:
        """No more than the overhead."""
        if not len(self.serial_sizes):
            return np.zeros(len(num_bytes))
        part: Floats = np.interp(num_bytes, self.serial_sizes, self.serial_s)
        return np.minimum(part, self.overhead(num_bytes))


NO_OVERHEAD = TransportCosts(sizes=np.zeros(1), overhead_s=np.zeros(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class PassTimes:
    """Forward and backward of every op."""

    forward: OpTimes
    backward: OpTimes
    whole: Lines | None
    """Forward and backward of the whole model, where a rank has a profile. Ops are measured one by one with probes, and their
    errors add up; whole steps are measured without probes. So an op's line gives only its share of the step."""

    def at(self, samples: Floats) -> tuple[Floats, Floats]:
        """Seconds of every op on every rank, forward and backward."""
        forward_s, backward_s = self.forward.seconds(samples), self.backward.seconds(samples)
        if self.whole is None:
            return forward_s, backward_s
        total = forward_s.sum(axis=1) + backward_s.sum(axis=1)
        scale = (self.whole.at(samples) / np.where(total > 0, total, 1.0))[:, None]
        return forward_s * scale, backward_s * scale

    def part(self, ranks: Ints) -> PassTimes:
        return PassTimes(
            forward=self.forward.part(ranks),
            backward=self.backward.part(ranks),
            whole=self.whole and self.whole.part(ranks),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedTimes:
    """Times of ops that several devices share (tensor parallelism), measured at one degree."""

    times: PassTimes
    is_measured: tuple[bool, ...]
    """Per rank."""
    includes_sums: bool
    """The times contain the sums of outputs over the devices."""

    def part(self, ranks: Ints) -> ShardedTimes:
        known = tuple(self.is_measured[rank] for rank in ranks)
        return ShardedTimes(times=self.times.part(ranks), is_measured=known, includes_sums=self.includes_sums)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All costs of one workload on one cluster."""

    cluster: Cluster
    forward: OpTimes
    backward: OpTimes
    whole: Lines | None
    """See `PassTimes`."""
    data: Lines
    update: Lines
    encode: Mapping[str, Lines]
    decode: Mapping[str, Lines]
    transports: Mapping[str, TransportCosts]
    """All-reduces of the transports themselves."""
    origins: tuple[Origin, ...]
    ranges: tuple[tuple[float, float], ...]
    """Per rank: the least and most samples of the measurement."""
    memory_fixed_bytes: tuple[float | None, ...] = ()
    """Per rank: metered memory that does not depend on the samples. None: not measured."""
    serialized_links: bool = True
    """Emulated links serialize transfers; real links share their bandwidth."""
    sharded: Mapping[int, ShardedTimes] = field(default_factory=dict)
    """By degree of tensor parallelism."""
    made_of_messages: Mapping[tuple[str, str], TransportCosts] = field(default_factory=dict)
    """By transport and collective: all-reduces that we carry out by messages, where they were measured."""
    notes: tuple[str, ...] = field(default=())

    def all_reduce(self, transport: str, collective: str) -> TransportCosts:
        """What was not measured costs as much as the transport's own."""
        own = self.transports.get(transport, NO_OVERHEAD)
        return self.made_of_messages.get((transport, collective), own)

    def passes(self, samples: Floats, degree: int = 1) -> tuple[Floats, Floats]:
        """Seconds of every op on every rank, forward and backward; where `degree` devices share each op, of one of them.

        A degree that was not measured on a rank divides the times of one device.
        """
        forward_s, backward_s = PassTimes(forward=self.forward, backward=self.backward, whole=self.whole).at(samples)
        if degree == 1:
            return forward_s, backward_s
        forward_s, backward_s = forward_s / degree, backward_s / degree
        if (sharded := self.sharded.get(degree)) is None:
            return forward_s, backward_s
        known = np.array(sharded.is_measured)[:, None]
        measured = sharded.times.at(samples)
        return np.where(known, measured[0], forward_s), np.where(known, measured[1], backward_s)

    def includes_sums(self, degree: int) -> bool:
        """Whether the times of this degree contain the sums of outputs."""
        return degree in self.sharded and self.sharded[degree].includes_sums

    def part(self, ranks: Sequence[int]) -> Costs:
        """The costs of a job of these ranks alone, as `Cluster.part`: the n-th of them is rank n."""
        chosen = np.array(ranks, np.int64)
        return replace(
            self,
            cluster=self.cluster.part(ranks),
            forward=self.forward.part(chosen),
            backward=self.backward.part(chosen),
            whole=self.whole and self.whole.part(chosen),
            data=self.data.part(chosen),
            update=self.update.part(chosen),
            encode={name: lines.part(chosen) for name, lines in self.encode.items()},
            decode={name: lines.part(chosen) for name, lines in self.decode.items()},
            ranges=tuple(self.ranges[rank] for rank in ranks),
            memory_fixed_bytes=tuple(self.memory_fixed_bytes[rank] for rank in ranks if self.memory_fixed_bytes),
            sharded={degree: times.part(chosen) for degree, times in self.sharded.items()},
        )

    def doubts(self, samples: Sequence[float], degree: int = 1) -> list[str]:
        """Notes on where a prediction extrapolates beyond the measurement. `samples`: of each rank, in one pass."""
        beyond = [
            f"rank {rank}: {count:g} samples, measured from {low:g} to {high:g}"
            for rank, (count, (low, high)) in enumerate(zip(samples, self.ranges, strict=True))
            if count and not low <= count <= high
        ]
        sharded = self.sharded.get(degree)
        if degree > 1 and (sharded is None or not all(sharded.is_measured)):
            beyond.append(f"ops shared by {degree} devices: times of one device, divided by {degree}")
        return [*self.notes, *beyond]


def held_bytes(graph: OpGraph, costs: Costs) -> tuple[Floats, Floats]:
    """Memory that does not depend on samples, per rank: what every plan holds, and what scales with the share of the parameters.

    Measured fixed memory beyond parameters, gradients and optimizer state (a context, libraries) is of the first kind, and so
    is what the cluster file reserves.
    """
    reserved = np.array([device.reserved_bytes for device in costs.cluster.devices], np.float64)
    fixed = np.array([one or graph.held_bytes for one in costs.memory_fixed_bytes], np.float64)
    beyond = np.maximum(fixed - graph.held_bytes, 0.0) if graph.held_bytes else np.zeros(len(fixed))
    return reserved + beyond, fixed - beyond


class LikeRanks:
    """Ranks that are alike: equal costs and equal samples. Of a data-parallel step it is enough to simulate one of each kind.

    Ranks of such a step meet in transfers only, which wait for all of them. Two ranks with equal costs and samples reach every
    point at the same time, so leaving one of them out changes no time. A cluster of 1,024 devices of two kinds is as fast
    to simulate as one of two devices.
    """

    def __init__(self, costs: Costs) -> None:
        tables = list(_tables(costs))
        numbers: dict[Hashable, int] = {}
        keys = [tuple(table[rank].tobytes() for table in tables) for rank in range(len(costs.cluster.devices))]
        self.kind_of_rank = [numbers.setdefault(key, len(numbers)) for key in keys]

    def rows(self, samples: Sequence[int]) -> tuple[Ints, Ints]:
        """A rank of each kind and number of samples; and for each rank, its place among those."""
        places: dict[tuple[int, int], int] = {}
        row_of_rank = [places.setdefault(key, len(places)) for key in zip(self.kind_of_rank, samples, strict=True)]
        rows = np.array(row_of_rank, np.int64)
        _, first = np.unique(rows, return_index=True)
        return first, rows


def _tables(costs: Costs) -> Iterator[Floats | Ints]:
    """Everything that the seconds of a rank depend on, one row per rank."""
    for times in (costs.forward, costs.backward):
        yield from _of_ops(times)
    lines = [costs.whole, costs.data, costs.update, *costs.encode.values(), *costs.decode.values()]
    for line in lines:
        if line is not None:
            yield from _of_line(line)


def _of_ops(times: OpTimes) -> Iterator[Floats | Ints]:
    yield from (times.arithmetic_s, times.fixed_s, times.per_sample_s, times.launch_s)
    yield from _of_points(times.points)


def _of_line(line: Lines) -> Iterator[Floats | Ints]:
    yield from (line.fixed_s, line.slope_s)
    yield from _of_points(line.points)


def _of_points(points: Points | None) -> Iterator[Floats | Ints]:
    if points is not None:
        yield from (points.num, points.samples, points.seconds)
