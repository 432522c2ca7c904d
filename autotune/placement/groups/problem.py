"""What a placement search chooses and how it is judged: a set of devices for every group of ops.

Every judged assignment is simulated once and kept, so a search can stop at any time and has the best so far. Assignments that
exceed a device's memory are ordered by how much they exceed it. Groups on the same set become one group of the plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autotune.placement.groups.device_sets import DeviceSet
from autotune.placement.groups.estimate import Estimate
from autotune.placement.groups.op_groups import Group
from autotune.simulate.simulator import Outcome, Simulator
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan

_MOST_PASSES = 40_000
"""Of a step that is simulated: thousands of messages that share links at once take minutes."""
Assignment = tuple[int, ...]
"""Of each group: the number of its set of devices."""
Value = tuple[float, float]
"""Memory beyond the devices' as shares of it, then the objective; less is better."""
Objective = Callable[[Plan, Outcome], float]
"""Of a plan that fits; less is better."""
Progress = Callable[[int, float], None]
"""Called after each simulation with their number and the least objective."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What may be chosen for one number of micro-batches."""

    groups: tuple[Group, ...]
    sets: tuple[DeviceSet, ...]
    micro_batches: int

    def plan(self, assignment: Assignment, num_ranks: int) -> Plan:
        """Neighbouring or not: groups on one set are one group."""
        ops: dict[int, list[int]] = {}
        for group, chosen in zip(self.groups, assignment, strict=True):
            ops.setdefault(chosen, []).extend(group.ops)
        placed = tuple(
            OpGroup(ops=tuple(sorted(found)), ranks=self.sets[chosen].ranks, samples=self.sets[chosen].samples)
            for chosen, found in ops.items()
        )
        placement = PlacementPlan(groups=placed, micro_batches=self.micro_batches)
        batch = BatchPlan(samples=placement.most_samples(num_ranks))
        return Plan(batch=batch, comm=CommPlan(transport="gloo"), placement=placement)


def step_seconds(_plan: Plan, outcome: Outcome) -> float:
    """The usual objective."""
    return outcome.step_s


@dataclass(kw_only=True)
class PlacementProblem:
    """One search: what may be chosen, what was judged, and how much may still be simulated."""

    simulator: Simulator
    choices: Choices
    most_simulations: int
    most_tasks: float = math.inf
    """Of all simulated steps together: long steps leave room for few."""
    objective: Objective = step_seconds
    progress: Progress | None = None
    judged: dict[Assignment, Value] = field(default_factory=dict)
    num_simulations: int = 0
    _num_tasks: int = 0
    _least: Value = (math.inf, math.inf)

    def __post_init__(self) -> None:
        self.estimate = Estimate(self.simulator, self.choices.groups, self.choices.sets, self.choices.micro_batches)

    @property
    def num_groups(self) -> int:
        return len(self.choices.groups)

    @property
    def num_sets(self) -> int:
        return len(self.choices.sets)

    @property
    def is_spent(self) -> bool:
        """Nothing more may be simulated."""
        return self.num_simulations >= self.most_simulations or self._num_tasks >= self.most_tasks

    @property
    def best(self) -> Assignment:
        """The best so far; all groups on all devices before anything was judged."""
        if not self.judged:
            return (0,) * self.num_groups
        return min(self.judged, key=lambda one: (self.judged[one], one))

    def elite(self, number: int) -> list[Assignment]:
        """The best so far, the very best first."""
        return heapq.nsmallest(number, self.judged, key=lambda one: (self.judged[one], one))

    def as_in(self, other: PlacementProblem) -> Assignment:
        """The best of another problem with the same groups; sets that are not among these are all devices."""
        number = {one.ranks: place for place, one in reversed(list(enumerate(self.choices.sets)))}
        return tuple(number.get(other.choices.sets[chosen].ranks, 0) for chosen in other.best)

    def plan(self, assignment: Assignment) -> Plan:
        return self.choices.plan(assignment, len(self.simulator.costs.cluster.devices))

    def judge(self, assignment: Assignment) -> Value:
        """Simulated once; what may not be simulated any more, or is too large for it, is as bad as can be."""
        if assignment not in self.judged:
            if self.is_spent:
                return math.inf, math.inf
            if self._num_passes(assignment) > _MOST_PASSES:
                self.judged[assignment] = math.inf, math.inf
                return self.judged[assignment]
            self.judged[assignment] = self.judge_plan(self.plan(assignment))
        return self.judged[assignment]

    def _num_passes(self, assignment: Assignment) -> int:
        """At most, of all ranks in a step."""
        num_lanes = sum(len(self.choices.sets[chosen].ranks) for chosen in set(assignment))
        num_runs = 1 + sum(a != b for a, b in pairwise(assignment))
        return 2 * num_runs * num_lanes * self.choices.micro_batches

    def judge_plan(self, plan: Plan) -> Value:
        """One simulation."""
        found = self.simulator.outcome(plan)
        over = 0.0
        for held, device in zip(found.peak_memory_bytes.tolist(), self.simulator.costs.cluster.devices, strict=True):
            if device.memory_bytes is not None and held > device.memory_bytes:
                over += held / max(device.memory_bytes, 1.0) - 1
        value = over, self.objective(plan, found)
        self.num_simulations += 1
        self._num_tasks += found.num_tasks
        self._least = min(self._least, value)
        if self.progress is not None:
            self.progress(self.num_simulations, self._least[1])
        return value

    def uniform(self) -> list[Assignment]:
        """All groups on one set, the best by estimate first."""
        found = [(number,) * self.num_groups for number in range(self.num_sets)]
        return sorted(found, key=self.estimate.step_s)

    def lines(self) -> Iterator[tuple[int, ...]]:
        """Sets that share no device, one after another: as many as there are, fewer, and in the opposite order."""
        by_size: dict[int, list[int]] = {}
        for number, one in enumerate(self.choices.sets):
            by_size.setdefault(len(one.ranks), []).append(number)
        for numbers in by_size.values():
            line: list[int] = []
            taken: set[int] = set()
            for number in sorted(numbers, key=lambda number: self.choices.sets[number].ranks):
                ranks = self.choices.sets[number].ranks
                if taken.isdisjoint(ranks) and len(line) < self.num_groups:
                    line.append(number)
                    taken.update(ranks)
            for length in range(2, len(line) + 1):
                yield tuple(line[:length])
                yield tuple(line[length - 1 :: -1])

    def heaviest_first(self) -> Sequence[int]:
        """Groups by work on all devices and bytes to sum."""
        weight = self.estimate.weights()
        return sorted(range(self.num_groups), key=lambda group: (-weight[group], group))
