"""Tables of costs on one cluster: ops, data, updates, codecs, collectives, memory. `cost_sources` fills them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.results.store.forecast import Origin
from autotune.simulate.data_parallel import pass_seconds
from autotune.simulate.task_graph import Floats
from autotune.workloads.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTimes:
    """Coefficients of `autotune.simulate.roofline.line_s`, one table each. Rows are ranks, columns ops."""

    arithmetic_s: Floats
    fixed_s: Floats
    per_sample_s: Floats
    launch_s: Floats

    @property
    def one_more_s(self) -> Floats:
        """Seconds that one more sample adds to a matrix product: the arithmetic where it is stated, else the measured slope."""
        taken: Floats = np.where(self.arithmetic_s > 0, self.arithmetic_s, self.per_sample_s)
        return taken

    def seconds(self, samples: Floats) -> Floats:
        taken: Floats = pass_seconds(self.arithmetic_s, self.fixed_s, self.per_sample_s, self.launch_s, samples)
        return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """fixed + slope · x, one line per rank."""

    fixed_s: Floats
    slope_s: Floats

    def at(self, x: Floats) -> Floats:
        taken: Floats = self.fixed_s + self.slope_s * x
        return taken

    def table(self, x: Floats) -> Floats:
        """Every rank at every x."""
        taken: Floats = self.fixed_s[:, None] + self.slope_s[:, None] * x[None, :]
        return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportCosts:
    """Overhead of an all-reduce over one transport, beyond the time of its bytes on the links."""

    sizes: Floats
    overhead_s: Floats
    """At each of the sizes; interpolated between them, extrapolated with the slope of the last two."""
    slots: int = 1
    """Concurrent collectives of the transport."""

    def overhead(self, num_bytes: Floats) -> Floats:
        inside: Floats = np.interp(num_bytes, self.sizes, self.overhead_s)
        if len(self.sizes) < 2:
            return inside
        slope = (self.overhead_s[-1] - self.overhead_s[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond: Floats = np.maximum(num_bytes - self.sizes[-1], 0.0)
        return inside + max(float(slope), 0.0) * beyond


NO_OVERHEAD = TransportCosts(sizes=np.zeros(1), overhead_s=np.zeros(1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All costs of one workload on one cluster."""

    cluster: Cluster
    forward: OpTimes
    backward: OpTimes
    whole: Lines | None
    """Forward and backward of the whole model, where a rank has a profile. Ops are measured one by one with probes, and their
    errors add up; whole steps are measured without probes. So an op's line gives only its share of the step."""
    data: Lines
    update: Lines
    encode: Mapping[str, Lines]
    decode: Mapping[str, Lines]
    transports: Mapping[str, TransportCosts]
    origins: tuple[Origin, ...]
    ranges: tuple[tuple[float, float], ...]
    """Per rank: the least and most samples of the measurement."""
    memory_fixed_bytes: tuple[float | None, ...] = ()
    """Per rank: metered memory that does not depend on the samples. None: not measured."""
    serialized_links: bool = True
    """Emulated links serialize transfers; real links share their bandwidth."""
    notes: tuple[str, ...] = field(default=())

    def passes(self, samples: Floats) -> tuple[Floats, Floats]:
        """Seconds of every op on every rank, forward and backward."""
        forward_s, backward_s = self.forward.seconds(samples), self.backward.seconds(samples)
        if self.whole is None:
            return forward_s, backward_s
        total = forward_s.sum(axis=1) + backward_s.sum(axis=1)
        scale = (self.whole.at(samples) / np.where(total > 0, total, 1.0))[:, None]
        return forward_s * scale, backward_s * scale

    def doubts(self, samples: Sequence[int]) -> list[str]:
        """Notes on where a prediction for this split extrapolates beyond the measurement."""
        beyond = [
            f"rank {rank}: {count} samples, measured from {low:g} to {high:g}"
            for rank, (count, (low, high)) in enumerate(zip(samples, self.ranges, strict=True))
            if count and not low <= count <= high
        ]
        return [*self.notes, *beyond]
