"""What stages cost by the simulator's own tables: seconds, memory, links. Shares follow from them, and an estimate of a step.

The estimate of a step is (busiest stage or link, over all micro-batches, with its sum of gradients) + (one micro-batch's way through
all stages and back). It orders what a search tries next; the simulator judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from autotune.placement.chain_costs import device_links
from autotune.placement.stage_shape import Group, Shape, Stage
from autotune.simulate.collectives import ranks_latency_s
from autotune.simulate.cost_tables import held_bytes
from autotune.simulate.edge_loads import pieces, ring_bytes
from autotune.simulate.simulator import Simulator
from autotune.simulate.task_graph import Floats
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.plan import SPLIT
from autotune.workloads.split import Bounds, RankCost, balanced

_KEPT = 100_000


class StageTimes:
    """Costs of stages of one workload on one cluster. Places are those of `StageCuts.first_ops`."""

    def __init__(self, simulator: Simulator, places: StageCuts) -> None:
        self.simulator, self.places = simulator, places
        self.total, self.least = simulator.info.global_batch, max(places.min_samples, 1)
        self.devices = simulator.costs.cluster.devices
        self.num_ranks, self.num_places = len(self.devices), len(places.first_ops)
        self._ends = np.array([*places.first_ops, len(simulator.graph.ops)])
        ops, graph = simulator.graph.ops, simulator.graph
        share = graph.held_bytes / graph.param_bytes if graph.param_bytes else 0.0
        self.param_bytes = self._sums([op.param_bytes for op in ops])
        self.held_bytes = self.param_bytes * share
        self.saved_bytes = self._sums([op.saved_bytes_per_sample for op in ops])
        self._linear_bytes = self._sums([op.output_bytes_per_sample for op in ops if op.factor_shapes], of_linear=True)
        self._linear_num = self._sums([1.0 for op in ops if op.factor_shapes], of_linear=True)
        constant, _ = held_bytes(graph, simulator.costs)
        self.memory_bytes = np.array(
            [(device.memory_bytes or math.inf) - taken for device, taken in zip(self.devices, constant, strict=True)]
        )
        self.latency_s, self.per_byte_s = device_links(simulator.costs.cluster)
        self.boundary_bytes = np.array([*places.stream_bytes, 0.0])
        self._topology = simulator.costs.cluster.topology
        self.seconds = lru_cache(maxsize=_KEPT)(self._seconds)
        self.ring = lru_cache(maxsize=_KEPT)(self._ring)
        self._joint = lru_cache(maxsize=_KEPT)(self._joint_s)
        self.kinds = self._kinds()

    def _sums(self, per_op: Sequence[float], *, of_linear: bool = False) -> Floats:
        """Up to each place."""
        values = np.zeros(len(self.simulator.graph.ops))
        chosen = [i for i, op in enumerate(self.simulator.graph.ops) if op.factor_shapes or not of_linear]
        values[chosen] = per_op
        sums: Floats = np.concatenate([[0.0], np.cumsum(values)])[self._ends]
        return sums

    def _kinds(self) -> tuple[int, ...]:
        """Of each rank: ranks of a kind compute alike and have the same memory."""
        rows = self.seconds(1, 1.0)
        known: dict[tuple[object, ...], int] = {}
        keys = [(float(limit), row.tobytes()) for limit, row in zip(self.memory_bytes, rows, strict=True)]
        return tuple(known.setdefault(key, len(known)) for key in keys)

    def _seconds(self, degree: int, samples: float) -> Floats:
        """Forward and backward of each rank (rows) up to each place, for so many samples; of one of `degree` devices."""
        forward_s, backward_s = self.simulator.costs.passes(np.full(self.num_ranks, float(samples)), degree)
        sums = np.zeros((self.num_ranks, forward_s.shape[1] + 1))
        np.cumsum(forward_s + backward_s, axis=1, out=sums[:, 1:])
        found: Floats = sums[:, self._ends]
        return found

    def _joint_s(self, group: Group) -> tuple[float, float]:
        """Of a group: seconds per byte of an output that its ranks sum, and latency of one sum."""
        if len(group) == 1 or self.simulator.costs.includes_sums(len(group)):
            return 0.0, 0.0
        return self._topology.busy_s(ring_bytes(self._topology, group, 1.0)), ranks_latency_s(
            "ring", self._topology, group
        )

    def group_s(self, group: Group, samples: float) -> Floats:
        """Seconds of a pass there and back, up to each place."""
        if samples <= 0:
            return np.zeros(self.num_places + 1)
        taken: Floats = self.seconds(len(group), float(samples))[list(group)].max(axis=0)
        per_byte_s, latency_s = self._joint(group)
        if per_byte_s or latency_s:  # every second Linear layer, forward and backward
            taken = taken + self._linear_bytes * samples * per_byte_s + self._linear_num * latency_s
        return taken

    def _ring(self, groups: tuple[Group, ...]) -> tuple[float, float]:
        """Seconds per byte of a stage's gradients, and latency of the sum."""
        if len(groups) == 1:
            return 0.0, 0.0
        loads: dict[int, float] = {}
        latency_s = 0.0
        for ranks, share in pieces(groups):
            for edge, num_bytes in ring_bytes(self._topology, ranks, share).items():
                loads[edge] = loads.get(edge, 0.0) + num_bytes
            latency_s = max(latency_s, ranks_latency_s("ring", self._topology, ranks))
        return self._topology.busy_s(loads), latency_s

    def held(self, first: int, end: int, group: Group, in_flight: float, *, shared: bool) -> float:
        """Bytes on each rank of a group. `in_flight`: samples between forward and backward."""
        state = self.held_bytes[end] - self.held_bytes[first]
        if shared:
            state += self.param_bytes[end] - self.param_bytes[first]
        saved = self.saved_bytes[end] - self.saved_bytes[first]
        return float(state + saved * in_flight) / len(group)

    def room(self, first: int, end: int, group: Group, *, shared: bool) -> float:
        """Samples between forward and backward that a group can hold."""
        saved = float(self.saved_bytes[end] - self.saved_bytes[first])
        left = float(self.memory_bytes[list(group)].min()) * len(group)
        left -= self.held(first, end, group, 0.0, shared=shared) * len(group)
        return math.inf if saved <= 0 and left >= 0 else left / max(saved, 1e-300)

    def shared_out(self, shape: Shape) -> Shape | None:
        """With shares that balance each stage within memory; None if its micro-batch is too small for its replicas."""
        stages = []
        for stage, end, ahead in self.ends(shape):
            shares = self._shares(stage, end, ahead, shape)
            if shares is None:
                return None
            stages.append(Stage(first=stage.first, groups=stage.groups, shares=shares))
        made = replace(shape, stages=tuple(stages))
        return made if self.lanes_hold(made) else None

    def lanes_hold(self, shape: Shape) -> bool:
        """Whether every lane of the executor (samples that stay together through all stages) is as large as the model needs."""
        if shape.sharing != SPLIT or self.least == 1:
            return True
        ends = {0}.union(*(accumulate(stage.shares) for stage in shape.stages))
        return all(b - a >= self.least for a, b in pairwise(sorted(ends)))

    def ends(self, shape: Shape) -> list[tuple[Stage, int, int]]:
        """Each stage with its end and the micro-batches that one of its replicas holds."""
        ends = [*shape.firsts[1:], self.num_places]
        ahead = [len(shape.stages) - number for number in range(len(shape.stages))]
        if shape.schedule == "gpipe":
            ahead = [shape.micro_batches] * len(ahead)
        return list(zip(shape.stages, ends, (min(one, shape.micro_batches) for one in ahead), strict=True))

    def _shares(self, stage: Stage, end: int, ahead: int, shape: Shape) -> tuple[int, ...] | None:
        groups, micro = stage.groups, self.total // shape.micro_batches
        if shape.sharing != SPLIT:
            if len(groups) > shape.micro_batches:
                return None
            costs = [
                RankCost(fixed_s=0.0, per_sample_s=float(one[end] - one[stage.first]))
                for one in (self.group_s(group, micro) for group in groups)
            ]
            bounds = Bounds(minimums=(1,) * len(groups), caps=(shape.micro_batches,) * len(groups))
            return balanced(costs, shape.micro_batches, bounds)
        if self.least * len(groups) > micro:
            return None
        if len(groups) == 1:
            return (micro,)
        rooms = [self.room(stage.first, end, group, shared=True) for group in groups]
        caps = tuple(int(min(max(room / ahead, self.least), micro)) for room in rooms)
        costs = [self._line(group, stage.first, end, micro, len(groups)) for group in groups]
        for limits in (caps, (micro,) * len(groups)):
            try:
                return balanced(costs, micro, Bounds(minimums=(self.least,) * len(groups), caps=limits))
            except (InfeasiblePlanError, SpecError):
                continue
        return None

    def _line(self, group: Group, first: int, end: int, micro: int, num: int) -> RankCost:
        """Through an even share and twice that."""
        share = max(micro / num, 1.0)
        low, high = (self.group_s(group, share * times) for times in (1, 2))
        low_s, high_s = float(low[end] - low[first]), float(high[end] - high[first])
        slope = max(high_s - low_s, 0.0) / share
        return RankCost(fixed_s=max(low_s - slope * share, 0.0), per_sample_s=slope)

    def estimate(self, shape: Shape) -> tuple[float, float]:
        """Memory beyond what devices have, as a share of it, and seconds of a step."""
        over, busiest_s, way_s = 0.0, 0.0, 0.0
        micro, num = self.total / shape.micro_batches, shape.micro_batches
        for stage, end, ahead in self.ends(shape):
            slowest_s, load_s, shared = 0.0, 0.0, len(stage.groups) > 1
            for group, share in zip(stage.groups, stage.shares, strict=True):
                samples = share if shape.sharing == SPLIT else micro
                sums = self.group_s(group, samples)
                seconds = float(sums[end] - sums[stage.first])
                slowest_s = max(slowest_s, seconds)
                load_s = max(load_s, seconds * (num if shape.sharing == SPLIT else share))
                held = self.held(stage.first, end, group, samples * ahead, shared=shared)
                limit = float(self.memory_bytes[list(group)].min())
                over += max(held - limit, 0.0) / max(limit, 1.0) if limit < math.inf else 0.0
            per_byte_s, latency_s = self.ring(stage.groups)
            load_s += float(self.param_bytes[end] - self.param_bytes[stage.first]) * per_byte_s + latency_s
            busiest_s, way_s = max(busiest_s, load_s), way_s + slowest_s
        for (left, _, _), (right, _, _) in pairwise(self.ends(shape)):
            a, b = left.groups[0][0], right.groups[0][0]
            num_bytes = float(self.boundary_bytes[right.first]) * micro
            parallel = 1 if shape.sharing != SPLIT else min(len(left.groups), len(right.groups))
            for source, target in ((a, b), (b, a)):
                hop_s = num_bytes * float(self.per_byte_s[source, target])
                busiest_s = max(busiest_s, hop_s * num / min(len(left.groups), len(right.groups)))
                way_s += hop_s / parallel + float(self.latency_s[source, target])
        return over, busiest_s * (num - 1) / num + way_s
