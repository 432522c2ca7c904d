"""Emulated devices of a pipeline: each pass of a part sleeps until the emulated device would have finished it.

As `autotune.runtime.emulate.device_pacer` for ops: a virtual clock advances by the cost of the part's ops on the stated
device, and results are sent when the clock reaches that time. A wait for messages sets the clock to the present time; real
work that is behind may catch up. A part on several devices costs each its share. The weight gradient of a split backward is
half of the backward of ops with parameters, as in the schedule search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from autotune.simulate.roofline import op_s, weight_share
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT
from autotune.workloads.cluster import Device
from autotune.workloads.graph import Op

_MIN_SLEEP_S = 0.0002
"""Shorter sleeps overshoot by as much as they last; the debt is carried to the next pass instead."""


def part_s(ops: Sequence[Op], device: Device, samples: float, kind: str, *, num_shards: int = 1) -> float:
    """Seconds of one pass of a part's ops on a device."""
    if kind == FORWARD:
        return math.fsum(op_s(op, device, samples) for op in ops) / num_shards
    backward = [(op, op_s(op, device, samples, backward=True)) for op in ops]
    weight_s = math.fsum(weight_share(op) * seconds for op, seconds in backward)
    whole_s = math.fsum(seconds for _, seconds in backward)
    return {BACKWARD: whole_s, INPUT: whole_s - weight_s, WEIGHT: weight_s}[kind] / num_shards


class BlockPacer:
    """The emulated device of one rank. Not thread-safe: called by the thread that computes."""

    def __init__(self, device: Device, ops: Mapping[str, Sequence[Op]], num_shards: Mapping[str, int]) -> None:
        """`ops`: of each part; `num_shards`: the number of devices of a part, where it is on several."""
        self.device = device
        self._ops, self._num_shards = ops, num_shards
        self._due_s = 0.0
        self.late_s = 0.0
        """The largest delay of real work behind the device in the step."""

    def begin(self) -> None:
        """Start a step now, with an idle device."""
        self._due_s, self.late_s = time.perf_counter(), 0.0

    def wake(self) -> None:
        """End a wait of the device now."""
        self._due_s = max(self._due_s, time.perf_counter())

    def charge(self, part: str, kind: str, samples: float) -> None:
        """Charge a computed pass: sleep until the device would have finished it."""
        shards = self._num_shards.get(part, 1)
        self._due_s += part_s(self._ops.get(part, ()), self.device, samples, kind, num_shards=shards)
        ahead_s = self._due_s - time.perf_counter()
        self.late_s = max(self.late_s, -ahead_s)
        if ahead_s > _MIN_SLEEP_S:
            time.sleep(ahead_s)
