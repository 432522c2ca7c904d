"""An estimate of a placed step without simulating it, for searches to choose what they simulate.

    one micro-batch = Σ groups compute of the slowest rank + Σ boundaries between sets 2 · bytes that pass · seconds per byte
    step            = (one + (micro-batches - 1) · the busiest rank's part of one) + sums of gradients

A boundary is paid where neighbouring groups are on different sets. Sums of different sets share no link in the estimate, and
lanes pay no fixed costs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from autotune.placement.groups.device_sets import DeviceSet
from autotune.placement.groups.op_groups import Group
from autotune.simulate.collectives import ranks_latency_s
from autotune.simulate.edge_loads import hop_bytes, merged, shard_bytes
from autotune.simulate.simulator import Simulator
from autotune.simulate.task_graph import Floats, Ints
from autotune.workloads.topology import Topology


class Estimate:
    """Of the assignments of one problem. Tables are made when they are first asked for."""

    def __init__(
        self, simulator: Simulator, groups: Sequence[Group], sets: Sequence[DeviceSet], micro_batches: int
    ) -> None:
        self._costs, self._groups, self._sets, self._num = simulator.costs, groups, sets, micro_batches
        self._topology = simulator.costs.cluster.topology
        self._passing = np.array([group.passing_bytes for group in groups])
        self._params = np.array([group.param_bytes for group in groups])

    @cached_property
    def busy_s(self) -> list[Floats]:
        """Of each set: seconds of a micro-batch of each group (rows) on each of its ranks."""
        own = np.zeros((self._costs.forward.fixed_s.shape[1], len(self._groups)))
        for number, group in enumerate(self._groups):
            own[list(group.ops), number] = 1.0
        found = []
        for one in self._sets:
            samples = np.zeros(len(self._costs.cluster.devices))
            samples[list(one.ranks)] = np.array(one.samples) / self._num
            forward_s, backward_s = self._costs.passes(samples)
            found.append(((forward_s + backward_s)[list(one.ranks)] @ own).T)
        return found

    @cached_property
    def compute_s(self) -> Floats:
        """Of a micro-batch: the slowest rank, by group and set."""
        return np.array([table.max(axis=1) for table in self.busy_s]).T

    @cached_property
    def sum_s(self) -> tuple[Floats, Floats]:
        """Of each set: seconds to sum a byte, and seconds of any sum."""
        per_byte, fixed_s = np.zeros(len(self._sets)), np.zeros(len(self._sets))
        for number, one in enumerate(self._sets):
            if len(one.ranks) > 1:
                even = [1 / len(one.ranks)] * len(one.ranks)
                per_byte[number] = self._topology.busy_s(shard_bytes(self._topology, one.ranks, even, 1.0))
                fixed_s[number] = ranks_latency_s("shards", self._topology, one.ranks)
        return per_byte, fixed_s

    @cached_property
    def hop_s(self) -> tuple[Floats, Floats]:
        """From each set to each other: seconds of a micro-batch per byte of a sample, and latency."""
        size = len(self._sets)
        per_byte, latency_s = np.zeros((size, size)), np.zeros((size, size))
        for a, source in enumerate(self._sets):
            for b, target in enumerate(self._sets):
                if a != b:
                    per_byte[a, b], latency_s[a, b] = _between(self._topology, source, target)
        return per_byte / self._num, latency_s

    def weights(self) -> Floats:
        """How much a group matters: its compute and its sum on all devices, and its boundary."""
        per_byte, _ = self.sum_s
        weight: Floats = self.compute_s[:, 0] * self._num + self._params * per_byte[0]
        return weight

    def step_s(self, assignment: Sequence[int]) -> float:
        chosen = np.array(assignment)
        per_byte, latency_s = self.hop_s
        a, b = chosen[:-1], chosen[1:]
        moved = a != b
        pass_s = float(self.compute_s[np.arange(len(chosen)), chosen].sum())
        pass_s += float(2 * ((per_byte[a, b] * self._passing[:-1] + latency_s[a, b]) * moved).sum())
        load = np.zeros(len(self._costs.cluster.devices))
        held = np.bincount(chosen, weights=self._params, minlength=len(self._sets))
        for number in np.unique(chosen):
            load[list(self._sets[number].ranks)] += self.busy_s[number][chosen == number].sum(axis=0)
        sum_per_byte, sum_fixed_s = self.sum_s
        sums_s = held * sum_per_byte + (held > 0) * sum_fixed_s
        return pass_s + (self._num - 1) * float(load.max()) + float(sums_s.max())

    def chains(self, number: int, weight_of_hops: float = 1.0, weight_of_sums: float = 1.0) -> list[tuple[int, ...]]:
        """The assignments with the least sums along the chain of groups, the least first, by dynamic programming: composes
        the sets exactly, as Tangram composes islands (arXiv 2606.16907), but for what the estimate leaves out.
        """
        per_byte, latency_s = self.hop_s
        sum_per_byte, _ = self.sum_s
        own = self.compute_s * self._num + weight_of_sums * self._params[:, None] * sum_per_byte[None, :]
        best = own[0][:, None]  # of each set, the best few ways to get there
        chosen = []
        for group in range(1, len(self._groups)):
            hop_s = 2 * weight_of_hops * self._num * (per_byte * self._passing[group - 1] + latency_s)
            table = (best[:, :, None] + hop_s[:, None, :]).reshape(-1, len(self._sets))
            first = np.argsort(table, axis=0, kind="stable")[:number]
            chosen.append((first // best.shape[1], first % best.shape[1]))
            best = np.take_along_axis(table, first, axis=0).T + own[group][:, None]
        ends = np.argsort(best, axis=None, kind="stable")[:number]
        return [self._path(chosen, *divmod(int(end), best.shape[1])) for end in ends]

    def _path(self, chosen: Sequence[tuple[Ints, Ints]], last: int, way: int) -> tuple[int, ...]:
        found = [last]
        for sources, ways in reversed(chosen):
            found.append(int(sources[way, found[-1]]))
            way = int(ways[way, found[-2]])
        return tuple(found[::-1])

    def runs(self, line: Sequence[int]) -> tuple[int, ...]:
        """Groups cut into a run for each set of a line, so that the slowest run takes least: the stages of a pipeline."""
        size = len(self._groups)
        ends = np.concatenate([np.zeros((1, len(self._sets))), np.cumsum(self.compute_s, axis=0)])
        best = ends[:, line[0]].copy()
        best[0] = np.inf
        chosen = []
        for number in line[1:]:
            run = np.where(np.tri(size + 1, k=-1, dtype=bool).T, ends[None, :, number] - ends[:, None, number], np.inf)
            table = np.maximum(best[:, None], run)
            chosen.append(table.argmin(axis=0))
            best = table.min(axis=0)
        end, found = size, list[int]()
        for number, sources in zip(reversed(line), (*reversed(chosen), np.zeros(size + 1, np.int64)), strict=True):
            start = int(sources[end])
            found[:0] = [number] * (end - start)
            end = start
        return tuple(found)


def _between(topology: Topology, source: DeviceSet, target: DeviceSet) -> tuple[float, float]:
    """Seconds to send every sample of a step from its rank in one set to its rank in the other, per byte; and latency."""
    loads, worst_s = [], 0.0
    senders, receivers = (
        list(zip(source.ranks, source.samples, strict=True)),
        list(zip(target.ranks, target.samples, strict=True)),
    )
    i, j, left, missing = 0, 0, senders[0][1], receivers[0][1]
    while True:
        count, a, b = min(left, missing), senders[i][0], receivers[j][0]
        if a != b:
            loads.append(hop_bytes(topology, a, b, float(count)))
            worst_s = max(worst_s, topology.latency_s(a, b))
        left, missing = left - count, missing - count
        if not left:
            i += 1
            if i == len(senders):
                break
            left = senders[i][1]
        if not missing:
            j += 1
            missing = receivers[j][1]
    return topology.busy_s(merged(loads)), worst_s
