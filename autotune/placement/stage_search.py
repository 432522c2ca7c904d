"""Search for plans with stages on mixed devices: replicas with uneven shares, tensor-parallel groups, all numbers of micro-batches.

Seeds come from dynamic programming along lines of devices (`stage_seeds`); shares follow the devices' costs (`stage_times`).
From the best seeds, moves (`stage_moves`) are tried in the order of their estimate and judged by the simulator, first by memory beyond
what the devices have, then by the step: where no seed fits, the search goes on until one does. A plan of many micro-batches is
judged by two short steps, whose difference is the time of the micro-batches between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.placement.stage_moves import Scene, moves, share_moves
from autotune.placement.stage_seeds import Seeds, lines
from autotune.placement.stage_shape import Shape, Stage, to_plan
from autotune.placement.stage_times import StageTimes
from autotune.simulate.simulator import Simulator
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.plan import ROUND_ROBIN, SPLIT, Plan

_STARTS = 12
_SMALL_RANKS = 6
"""With at most so many devices, every move is judged, not only the promising ones."""
_TRIED = 16
_BETTER = 1 - 1e-6
_TASKS_PER_RANK = 25_000
"""The search ends when the simulator has run so many tasks for each rank."""
_LONG = 3_000
"""Tasks of a step above which it is judged by short ones."""
_MOST_COUNTS = 6
"""Numbers of micro-batches from which a search with many devices starts; moves reach the others."""

Value = tuple[float, float]
"""Memory beyond what devices have, and seconds: less is better."""
NEVER: Value = (math.inf, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A shape, its plan and its value."""

    shape: Shape
    plan: Plan
    value: Value


class StageSearch:
    """`runs_only`: what jobs run today, no tensor-parallel groups and no round-robin of whole micro-batches."""

    def __init__(
        self, simulator: Simulator, places: StageCuts, *, runs_only: bool, tasks_per_rank: int = _TASKS_PER_RANK
    ) -> None:
        self.times = StageTimes(simulator, places)
        self._simulator, self._tasks_left = simulator, tasks_per_rank * self.times.num_ranks
        hosts = simulator.costs.cluster.host_of_rank
        islands: dict[tuple[int, int], int] = {}
        island_of = [
            islands.setdefault((host, kind), len(islands)) for host, kind in zip(hosts, self.times.kinds, strict=True)
        ]
        total, least = self.times.total, self.times.least
        largest = max(island_of.count(island) for island in islands.values())
        self.scene = Scene(
            num_places=self.times.num_places,
            island_of=tuple(island_of),
            counts=tuple(count for count in range(1, total // least + 1) if total % count == 0),
            most_degree=1 if runs_only else min(2 ** int(math.log2(largest)), 8),
            may_deal=not runs_only,
        )
        self.judged: dict[Shape, Value] = {}

    def run(self, seeds: Iterable[Shape] = ()) -> list[Found]:
        """All shapes that were judged, the best first."""
        if not self.scene.counts:
            return []
        started = self._best_seeds([*seeds, *self._seeds()])
        for shape in started:
            self._descend(shape)
        return self.found()

    def found(self) -> list[Found]:
        ordered = sorted(self.judged.items(), key=lambda pair: pair[1])
        return [
            Found(shape=shape, plan=self.plan(shape), value=value) for shape, value in ordered if value[1] < math.inf
        ]

    def plan(self, shape: Shape) -> Plan:
        return to_plan(shape, self.times.places.first_ops, self.times.num_ranks, self.times.total)

    def _seeds(self) -> Iterator[Shape]:
        counts = self.scene.counts
        if self.times.num_ranks > _SMALL_RANKS and len(counts) > _MOST_COUNTS:
            counts = tuple(counts[round(at * (len(counts) - 1) / (_MOST_COUNTS - 1))] for at in range(_MOST_COUNTS))
        for line in lines(self.times):
            for count in counts:
                for sharing in (SPLIT, ROUND_ROBIN) if self.scene.may_deal else (SPLIT,):
                    yield from Seeds(self.times, line, count, sharing, most_degree=self.scene.most_degree).shapes()

    def _best_seeds(self, seeds: Sequence[Shape]) -> list[Shape]:
        """By estimate, then by simulation: the best of each number of stages first, so that unlike shapes start."""
        shaped = [shape for seed in dict.fromkeys(seeds) if (shape := self.times.shared_out(seed)) is not None]
        shaped = shaped or [shape for shape in self._smallest() if shape is not None]
        guessed = sorted(dict.fromkeys(shaped), key=self.times.estimate)
        firsts = {(len(one.stages), one.micro_batches, one.sharing): one for one in reversed(guessed)}
        tried = dict.fromkeys(
            [*guessed[: 4 * _STARTS], *sorted(firsts.values(), key=self.times.estimate)[: 4 * _STARTS]]
        )
        for shape in tried:
            if self._tasks_left > 0 or len(self.judged) < _STARTS:
                self.judge(shape)
        return sorted(self.judged, key=self.judged.__getitem__)[:_STARTS]

    def _smallest(self) -> Iterator[Shape | None]:
        """Where nothing fits: as many stages as can be, with the smallest micro-batches."""
        size = min(self.times.num_ranks, self.times.num_places)
        for line in lines(self.times):
            stages = tuple(
                Stage(first=number * self.times.num_places // size, groups=((rank,),), shares=(1,))
                for number, rank in enumerate(line[:size])
            )
            yield self.times.shared_out(Shape(stages=stages, micro_batches=self.scene.counts[-1]))

    def _descend(self, shape: Shape) -> None:
        """To a shape that no move improves."""
        while self._tasks_left > 0:
            better = self._step(shape)
            if better is None:
                return
            shape = better

    def _step(self, shape: Shape) -> Shape | None:
        now = self.judged[shape]
        moved = [made for one in moves(shape, self.scene) if (made := self.times.shared_out(one)) is not None]
        moved += [one for one in share_moves(shape) if self.times.lanes_hold(one)]
        near = sorted(set(moved) - self.judged.keys(), key=self._order)
        for one in near if self.times.num_ranks <= _SMALL_RANKS else near[:_TRIED]:
            if self._tasks_left <= 0:
                return None
            over, step_s = self.judge(one)
            if over < now[0] or (over == now[0] and step_s < now[1] * _BETTER):
                return one
        return None

    def _order(self, shape: Shape) -> tuple[float, float, str]:
        return (*self.times.estimate(shape), repr(shape))

    def judge(self, shape: Shape) -> Value:
        if shape not in self.judged:
            self.judged[shape] = self._judge(shape)
        return self.judged[shape]

    def _judge(self, shape: Shape) -> Value:
        short = self._short(shape)
        if short is None:
            return self._simulated(self.plan(shape))
        low, high = (self._simulated(to_plan(*one)) for one in short)
        nums = [one[0].micro_batches for one in short]
        between_s = (high[1] - low[1]) / (nums[1] - nums[0])
        return max(low[0], high[0]), high[1] + max(between_s, 0.0) * (shape.micro_batches - nums[1])

    def _simulated(self, plan: Plan) -> Value:
        simulated = self._simulator.simulate(plan)
        self._tasks_left -= simulated.tasks.num_tasks
        peak = self._simulator.peak_memory_bytes(plan, simulated).tolist()
        over = 0.0
        for held, device in zip(peak, self.times.devices, strict=True):
            if device.memory_bytes is not None and held > device.memory_bytes:
                over += held / max(device.memory_bytes, 1.0) - 1
        return over, simulated.step_s

    def _short(self, shape: Shape) -> list[tuple[Shape, tuple[int, ...], int, int]] | None:
        """The same with few micro-batches, twice; None where the whole is not long, or is not the same with fewer."""
        groups = sum(len(stage.groups) for stage in shape.stages)
        lanes = groups if shape.sharing == SPLIT else len(shape.stages)
        if 4 * shape.micro_batches * lanes <= _LONG or shape.schedule == "gpipe":
            return None
        micro = self.times.total // shape.micro_batches
        cycle = 1
        if shape.sharing == ROUND_ROBIN:
            shares = [share for stage in shape.stages for share in stage.shares]
            cycle = shape.micro_batches // math.gcd(shape.micro_batches, *shares)
        least = max(2 * len(shape.stages), 4) if shape.sharing == SPLIT else 2 * groups
        times = math.ceil(least / cycle)
        if (times + max(times // 2, 1)) * cycle * 2 > shape.micro_batches:
            return None
        found = []
        for one in (times, times + max(times // 2, 1)):
            stages = shape.stages
            if shape.sharing == ROUND_ROBIN:
                stages = tuple(
                    replace(stage, shares=tuple(share * one * cycle // shape.micro_batches for share in stage.shares))
                    for stage in stages
                )
            few = replace(shape, stages=stages, micro_batches=one * cycle)
            found.append((few, self.times.places.first_ops, self.times.num_ranks, micro * one * cycle))
        return found
