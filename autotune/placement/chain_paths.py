"""Shortest paths of one micro-batch through stages, by dynamic programming over (ops done, devices used, last device).

Interchangeable devices form a class and are counted. The estimate that uses the paths is in `autotune.placement.chain_cut`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from autotune.placement.chain_costs import Cut, StageCosts
from autotune.simulate.task_graph import Floats

State = tuple[int, ...]
"""Devices used, per class."""


def num_states(costs: StageCosts) -> int:
    """The most choices of devices that a search for a cut visits; more take long."""
    return math.prod(len(one) + 1 for one in _classes(costs))


class Paths:
    """Shortest paths of one micro-batch, with no stage and no link busy for longer than a limit."""

    def __init__(self, costs: StageCosts, num_stages: int | None = None) -> None:
        self._costs, self._num_stages = costs, num_stages
        self._classes = _classes(costs)
        self._work = [self._between(costs.work_s(one[0])) for one in self._classes]
        need = self._between(costs.held_bytes) + self._between(costs.saved_bytes)
        upper = np.triu(np.ones_like(need, dtype=bool), k=1)
        self._fits = [upper & (need <= costs.memory_bytes[one[0]]) for one in self._classes]

    def shortest(self, limit_s: float) -> tuple[float, Cut] | None:
        num_ops = self._costs.num_ops
        start = (0,) * len(self._classes)
        paths: dict[State, dict[int, Floats]] = {start: {-1: np.where(np.arange(num_ops + 1) == 0, 0.0, np.inf)}}
        came: dict[tuple[State, int], tuple[list[int], Floats, Floats]] = {}
        least: tuple[float, State, int] = (math.inf, start, -1)
        for state in self._states():
            may_end = self._num_stages in (None, sum(state))
            for last, path in paths.get(state, {}).items():
                if may_end and last >= 0 and path[num_ops] < least[0]:
                    least = (float(path[num_ops]), state, last)
            for kind in range(len(self._classes)):
                if state in paths and state[kind] < len(self._classes[kind]):
                    self._extend(paths, came, state, kind, limit_s)
        if least[0] == math.inf:
            return None
        return least[0], self._trace(came, least[1], least[2])

    def along(self, devices: Sequence[int], limit_s: float) -> tuple[float, Cut] | None:
        """The same for devices in a given order, all of them."""
        num_ops, costs = self._costs.num_ops, self._costs
        path = np.where(np.arange(num_ops + 1) == 0, 0.0, np.inf)
        firsts = []
        for place, device in enumerate(devices):
            kind = next(kind for kind, alike in enumerate(self._classes) if device in alike)
            arrived = path + (_hop(costs, devices[place - 1], device, limit_s) if place else 0.0)
            allowed = self._fits[kind] & (self._work[kind] <= limit_s)
            total = np.where(allowed, arrived[:, None] + self._work[kind], np.inf)
            firsts.append(total.argmin(axis=0))
            path = total.min(axis=0)
        if path[num_ops] == np.inf:
            return None
        first_ops, end = [], num_ops
        for first in reversed(firsts):
            end = int(first[end])
            first_ops.append(end)
        return float(path[num_ops]), Cut(first_ops=tuple(reversed(first_ops)), devices=tuple(devices))

    def _extend(self, paths: dict, came: dict, state: State, kind: int, limit_s: float) -> None:  # type: ignore[type-arg]
        """One more stage, on a device of a class."""
        lasts = sorted(paths[state])
        arrivals = np.stack([paths[state][last] + self._hop(last, kind, state, limit_s) for last in lasts])
        from_last = arrivals.argmin(axis=0)
        arrived = arrivals.min(axis=0)
        allowed = self._fits[kind] & (self._work[kind] <= limit_s)
        total = np.where(allowed, arrived[:, None] + self._work[kind], np.inf)
        into = tuple(used + (index == kind) for index, used in enumerate(state))
        first = total.argmin(axis=0)
        paths.setdefault(into, {})[kind] = total.min(axis=0)
        came[into, kind] = (lasts, from_last, first)

    def _hop(self, last: int, kind: int, state: State, limit_s: float) -> Floats:
        """Per first op of the stage: seconds of the links, forward and backward."""
        if last < 0:
            return np.zeros(self._costs.num_ops + 1)
        return _hop(self._costs, self._classes[last][state[last] - 1], self._classes[kind][state[kind]], limit_s)

    def _states(self) -> Iterator[State]:
        """All of them, those with fewer devices first."""
        sizes = [len(one) + 1 for one in self._classes]
        yield from sorted(np.ndindex(*sizes), key=sum)

    def _trace(self, came: dict, state: State, last: int) -> Cut:  # type: ignore[type-arg]
        first_ops: list[int] = []
        devices: list[int] = []
        end = self._costs.num_ops
        while last >= 0:
            lasts, from_last, first = came[state, last]
            devices.append(self._classes[last][state[last] - 1])
            end = int(first[end])
            first_ops.append(end)
            state = tuple(used - (index == last) for index, used in enumerate(state))
            last = lasts[int(from_last[end])]
        return Cut(first_ops=tuple(reversed(first_ops)), devices=tuple(reversed(devices)))

    def _between(self, per_op: Floats) -> Floats:
        """The sum over the ops from a row's to a column's."""
        sums = np.concatenate([[0.0], np.cumsum(per_op)])
        table: Floats = sums[None, :] - sums[:, None]
        return table


def _hop(costs: StageCosts, source: int, target: int, limit_s: float) -> Floats:
    """Per first op of a stage: seconds of the links from the previous device and back."""
    hop = np.zeros(costs.num_ops + 1)
    for a, b in ((source, target), (target, source)):
        busy_s = costs.boundary_bytes * costs.seconds_per_byte[a, b]
        hop[:-1] += np.where(busy_s <= limit_s, costs.latency_s[a, b] + busy_s, np.inf)
    return hop


def _classes(costs: StageCosts) -> list[list[int]]:
    """Classes of interchangeable devices."""
    classes: list[list[int]] = []
    for device in range(costs.num_devices):
        for one in classes:
            if _alike(costs, one[0], device):
                one.append(device)
                break
        else:
            classes.append([device])
    return classes


def _alike(costs: StageCosts, a: int, b: int) -> bool:
    same = costs.memory_bytes[a] == costs.memory_bytes[b] and np.array_equal(costs.work_s(a), costs.work_s(b))
    swapped = np.arange(costs.num_devices)
    swapped[[a, b]] = b, a
    return bool(same) and all(
        np.array_equal(table, table[np.ix_(swapped, swapped)]) for table in (costs.latency_s, costs.seconds_per_byte)
    )
