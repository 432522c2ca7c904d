"""First shapes of a search for stages: devices in a line, cut into runs, by dynamic programming over (ops, devices) left.

Islands are like devices of one host. They stand in a line in several orders (as the cluster file has them, by speed, by memory,
kinds alternating; all orders where these are few), and a stage takes a run of the line with one degree of tensor parallelism,
which divides each island of the run. For a limit on the busiest stage, the least way of one micro-batch through all stages is a
shortest path over (stages left, devices left, ops left); lower limits follow while they can pay. Tangram (arXiv 2606.16907)
composes plans of islands by dynamic programming too; here a stage may span islands of unlike devices. A stage's memory depends on the
number of stages behind it, which is part of the state, so what does not fit is left out exactly.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.placement.stage_shape import Group, Shape, Stage
from autotune.placement.stage_times import StageTimes
from autotune.simulate.task_graph import Floats
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.plan import SPLIT
from autotune.workloads.split import Bounds, RankCost, balanced

DEGREES = (1, 2, 4, 8)
_FEW = 24
"""Orders of kinds that are all tried."""
_MOST_STAGES = 16
_MOST_PLACES = 33
_FINE, _COARSE = (0.98, 30), (0.9, 10)
"""Factor from limit to limit, and their number: for few devices, and for many."""
_FEW_RANKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """A stage's devices, for all ranges of places: rows begin, columns end."""

    length: int
    groups: tuple[Group, ...]
    load_s: Floats
    """Of all micro-batches, with the sum of gradients."""
    way_s: Floats
    """Of one micro-batch."""
    held_bytes: tuple[Floats, ...]
    """Per kind in the run: without activations."""
    saved_bytes: tuple[Floats, ...]
    """Of one micro-batch."""
    limits: tuple[float, ...]


def degrees_of(groups: Sequence[int], times: StageTimes) -> list[int]:
    """Degrees of tensor parallelism that divide each island of these ranks."""
    hosts = times.simulator.costs.cluster.host_of_rank
    islands = Counter((hosts[rank], times.kinds[rank]) for rank in groups)
    return [degree for degree in DEGREES if all(count % degree == 0 for count in islands.values())]


def lines(times: StageTimes) -> list[tuple[int, ...]]:
    """Orders of the devices."""
    kinds, ranks = times.kinds, range(times.num_ranks)
    if len(set(ranks)) <= _FEW_RANKS and _num_orders(kinds) <= _FEW:
        return _all_orders(kinds)
    hosts = times.simulator.costs.cluster.host_of_rank
    speed = times.seconds(1, 1.0)[:, -1]
    fast = sorted(ranks, key=lambda rank: (speed[rank], kinds[rank], hosts[rank], rank))
    roomy = sorted(ranks, key=lambda rank: (-times.memory_bytes[rank], kinds[rank], hosts[rank], rank))
    seen: Counter[int] = Counter()
    turn = {}
    for rank in ranks:
        seen[kinds[rank]] += 1
        turn[rank] = seen[kinds[rank]] / kinds.count(kinds[rank])
    mixed = sorted(ranks, key=lambda rank: (turn[rank], kinds[rank], rank))
    found = [tuple(ranks), tuple(fast), tuple(reversed(fast)), tuple(roomy), tuple(mixed)]
    return list(dict.fromkeys(found))


def _num_orders(kinds: Sequence[int]) -> float:
    counts = Counter(kinds).values()
    return math.factorial(len(kinds)) / math.prod(math.factorial(count) for count in counts)


def _all_orders(kinds: Sequence[int]) -> list[tuple[int, ...]]:
    """One of each order of kinds."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in itertools.permutations(range(len(kinds))):
        found.setdefault(tuple(kinds[rank] for rank in order), order)
    return list(found.values())


class Seeds:
    """Shapes of least estimate along a line of devices, for a number of micro-batches."""

    def __init__(
        self, times: StageTimes, line: Sequence[int], micro_batches: int, sharing: str, *, most_degree: int
    ) -> None:
        self._times, self._line, self._sharing = times, tuple(line), sharing
        self._num, self._micro = micro_batches, times.total // micro_batches
        step = max(math.ceil(times.num_places / (_MOST_PLACES - 1)), 1)
        self._places = np.array([*range(0, times.num_places, step), times.num_places])
        self._most_degree = most_degree
        self._runs = [list(self._runs_at(first)) for first in range(len(line))]
        self._hops_s = [self._hop_s(first) for first in range(len(line))]

    def shapes(self) -> Iterator[Shape]:
        """From the least way of one micro-batch to the least busiest stage."""
        factor, most = _FINE if len(self._line) <= _FEW_RANKS else _COARSE
        limit_s, least_s = math.inf, math.inf
        for _ in range(most):
            found = self._shortest(limit_s)
            if found is None:
                return
            way_s, shape, busiest_s = found
            least_s = min(least_s, busiest_s + way_s)
            yield shape
            if way_s >= least_s:
                return
            limit_s = busiest_s * factor

    def _runs_at(self, first: int) -> Iterator[_Run]:
        left = len(self._line) - first
        lengths = [size for size in range(1, left + 1) if left <= _FEW_RANKS or size in (1, 2, 3, 4, 6, 8, 12, 16, 24)]
        for length in lengths:
            ranks = self._line[first : first + length]
            for degree in degrees_of(ranks, self._times):
                if degree <= self._most_degree:
                    run = self._run(_groups(ranks, degree, self._times), length)
                    if run is not None:
                        yield run

    def _run(self, groups: tuple[Group, ...], length: int) -> _Run | None:
        times, micro = self._times, self._micro
        samples = self._samples(groups)
        if samples is None:
            return None
        most: dict[int, tuple[Group, float]] = {}
        for group, count in zip(groups, samples, strict=True):
            kind = times.kinds[group[0]]
            if kind not in most or count > most[kind][1]:
                most[kind] = group, count
        passes = [self._between(times.group_s(group, count)) for group, count in most.values()]
        way_s = np.max(passes, axis=0)
        if self._sharing == SPLIT:
            load_s = way_s * self._num
        else:
            num_of = Counter(times.kinds[group[0]] for group in groups)
            rates = sum(num_of[kind] / np.maximum(one, 1e-300) for kind, one in zip(most, passes, strict=True))
            load_s = self._num / rates
        per_byte_s, latency_s = times.ring(groups)
        load_s = load_s + self._between(times.param_bytes) * per_byte_s + latency_s
        state = times.held_bytes + (times.param_bytes if len(groups) > 1 else 0.0)
        degree = len(groups[0])
        counts = [count if self._sharing == SPLIT else micro for _, count in most.values()]
        return _Run(
            length=length,
            groups=groups,
            load_s=load_s,
            way_s=way_s,
            held_bytes=tuple(self._between(state) / degree for _ in most),
            saved_bytes=tuple(self._between(times.saved_bytes) * count / degree for count in counts),
            limits=tuple(float(times.memory_bytes[list(group)].min()) for group, _ in most.values()),
        )

    def _samples(self, groups: tuple[Group, ...]) -> list[float] | None:
        """Of each replica in a pass, balanced over the whole model."""
        if self._sharing != SPLIT:
            return [float(self._micro)] * len(groups) if len(groups) <= self._num else None
        if len(groups) * self._times.least > self._micro:
            return None
        speeds = [float(self._times.group_s(group, max(self._micro / len(groups), 1.0))[-1]) for group in groups]
        costs = [RankCost(fixed_s=0.0, per_sample_s=max(speed, 1e-300)) for speed in speeds]
        bounds = Bounds(minimums=(self._times.least,) * len(groups), caps=(self._micro,) * len(groups))
        try:
            return [float(count) for count in balanced(costs, self._micro, bounds)]
        except (InfeasiblePlanError, SpecError):
            return None

    def _between(self, sums: Floats) -> Floats:
        chosen = sums[self._places]
        table: Floats = chosen[None, :] - chosen[:, None]
        return table

    def _hop_s(self, first: int) -> tuple[Floats, Floats]:
        """Per place: seconds there and back of a message to the device at `first` from the one before it; busy, and on the way."""
        num_bytes = self._times.boundary_bytes[self._places] * self._micro
        if first == 0:
            return np.zeros(len(num_bytes)), np.zeros(len(num_bytes))
        a, b = self._line[first - 1], self._line[first]
        speeds, latencies = self._times.per_byte_s, self._times.latency_s
        busy_s = num_bytes * max(speeds[a, b], speeds[b, a])
        way_s = num_bytes * (speeds[a, b] + speeds[b, a]) + latencies[a, b] + latencies[b, a]
        return busy_s, way_s

    def _shortest(self, limit_s: float) -> tuple[float, Shape, float] | None:
        """The least way with no stage busier than the limit: seconds, shape, its busiest stage."""
        num, size = len(self._line), len(self._places)
        depth = min(num, size - 1, _MOST_STAGES)
        upper = np.triu(np.ones((size, size), dtype=bool), k=1)
        ahead = np.minimum(np.arange(1, depth + 1), self._num)[:, None, None]
        least = np.full((num + 1, depth + 1, size), math.inf)
        least[:, 0, -1] = 0.0
        came: list[list[tuple[_Run | None, Floats, Floats]]] = [[] for _ in range(num)]
        for first in range(num - 1, -1, -1):
            best = least[first + 1, 1:].copy()  # the device stays out
            busy_s, hop_s = self._hops_s[first]
            for run in self._runs[first]:
                fits = upper & (run.load_s <= limit_s)
                fits &= (busy_s * self._num / len(run.groups) <= limit_s)[:, None]
                allowed = np.broadcast_to(fits, (depth, size, size))
                for held, saved, limit in zip(run.held_bytes, run.saved_bytes, run.limits, strict=True):
                    if limit < math.inf:
                        allowed = allowed & (held + saved * ahead <= limit)
                way_s = run.way_s + hop_s[:, None] / (1 if self._sharing != SPLIT else len(run.groups))
                total = np.where(allowed, way_s, math.inf) + least[first + run.length, :-1, None, :]
                ends, values = total.argmin(axis=2), total.min(axis=2)
                better = values < best
                if better.any():
                    best = np.where(better, values, best)
                    came[first].append((run, better, ends))
            least[first, 1:] = best
        depth_of = int(least[0, :, 0].argmin())
        if least[0, depth_of, 0] == math.inf:
            return None
        shape, busiest_s = self._trace(came, depth_of)
        return float(least[0, depth_of, 0]), shape, busiest_s

    def _trace(self, came: list[list[tuple[_Run | None, Floats, Floats]]], depth: int) -> tuple[Shape, float]:
        stages, first, place, busiest_s = [], 0, 0, 0.0
        while depth > 0:
            taken = next(((run, ends) for run, better, ends in reversed(came[first]) if better[depth - 1, place]), None)
            if taken is None:
                first += 1
                continue
            run, ends = taken
            assert run is not None
            end = int(ends[depth - 1, place])
            stages.append(Stage(first=int(self._places[place]), groups=run.groups, shares=(1,) * len(run.groups)))
            busiest_s = max(busiest_s, float(run.load_s[place, end]))
            first, place, depth = first + run.length, end, depth - 1
        return Shape(stages=tuple(stages), micro_batches=self._num, sharing=self._sharing), busiest_s


def _groups(ranks: Sequence[int], degree: int, times: StageTimes) -> tuple[Group, ...]:
    """Of so many ranks of one island each."""
    hosts = times.simulator.costs.cluster.host_of_rank
    islands: dict[tuple[int, int], list[int]] = {}
    for rank in ranks:
        islands.setdefault((hosts[rank], times.kinds[rank]), []).append(rank)
    return tuple(
        tuple(members[start : start + degree])
        for members in islands.values()
        for start in range(0, len(members), degree)
    )
