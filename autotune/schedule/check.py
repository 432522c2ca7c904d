"""An independent check of a schedule: complete, in order, within memory; and its makespan.

It shares no code with the modules that make schedules: it replays the slots as written. Every reported schedule has
passed it. Times may differ by a part in 10⁹, since floats are summed in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from autotune.workloads.blocks import Slot, Timetable

_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """The outcome of a replay."""

    faults: tuple[str, ...]
    """Empty: the schedule is valid."""
    makespan_s: float
    busy_s: tuple[float, ...]
    """Per device."""
    peak_memory: tuple[float, ...]
    """Per device: the most that it holds at any moment."""

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Per device: the idle share of the makespan."""
        return tuple(1 - busy / self.makespan_s if self.makespan_s else 0.0 for busy in self.busy_s)


def replay(timetable: Timetable) -> Replay:
    """Replay a schedule and list its faults."""
    blocks = {block.name: block for block in timetable.graph.blocks}
    faults = list(_strangers(timetable))
    if not faults:
        faults = [*_counts(timetable), *_overlaps(timetable), *_dependencies(timetable), *_memory_faults(timetable)]
    known = [[slot for slot in slots if slot.block in blocks] for slots in timetable.order]
    return Replay(
        faults=tuple(faults),
        makespan_s=max((s.start_s + blocks[s.block].seconds for slots in known for s in slots), default=0.0),
        busy_s=tuple(sum(blocks[slot.block].seconds for slot in slots) for slots in known),
        peak_memory=tuple(
            max(level for _, level in _levels(timetable, device)) for device in range(len(timetable.order))
        ),
    )


def require_valid(timetable: Timetable) -> Replay:
    """The replay of a schedule that must be valid: a fault is a defect of the search, not of the input."""
    found = replay(timetable)
    if found.faults:
        raise AssertionError(f"the schedule is not valid: {'; '.join(found.faults[:5])}")
    return found


def _strangers(timetable: Timetable) -> Iterator[str]:
    """Slots that are not in the graph."""
    graph = timetable.graph
    names = {block.name: set(block.devices) for block in graph.blocks}
    if len(timetable.order) != graph.num_devices:
        yield f"the order is of {len(timetable.order)} devices, the graph of {graph.num_devices}"
        return
    for device, slots in enumerate(timetable.order):
        for slot in slots:
            if slot.block not in names:
                yield f"device {device} runs the unknown block {slot.block!r}"
            elif device not in names[slot.block]:
                yield f"device {device} runs {slot.block!r}, which is not its own"
            elif not 0 <= slot.microbatch < timetable.num_microbatches:
                yield f"device {device} runs {slot.block!r} of micro-batch {slot.microbatch}, which there is not"
            elif not slot.start_s >= 0:
                yield f"device {device} starts {slot.block!r} at {slot.start_s!r}"


def _counts(timetable: Timetable) -> Iterator[str]:
    """Every block of every micro-batch once on each of its devices, at one moment."""
    for device, slots in enumerate(timetable.order):
        seen = Counter((slot.block, slot.microbatch) for slot in slots)
        for block in timetable.graph.blocks:
            for microbatch in range(timetable.num_microbatches):
                times = seen[block.name, microbatch]
                if device in block.devices and times != 1:
                    yield f"device {device} runs {block.name!r} of micro-batch {microbatch} {times} times"
    starts: dict[tuple[str, int], float] = {}
    for slot in (slot for slots in timetable.order for slot in slots):
        if starts.setdefault((slot.block, slot.microbatch), slot.start_s) != slot.start_s:
            yield f"{slot.block!r} of micro-batch {slot.microbatch} starts at different times on its devices"


def _overlaps(timetable: Timetable) -> Iterator[str]:
    seconds = {block.name: block.seconds for block in timetable.graph.blocks}
    for device, slots in enumerate(timetable.order):
        for first, second in pairwise(slots):
            end_s = first.start_s + seconds[first.block]
            if second.start_s < end_s - _slack(end_s):
                yield (
                    f"device {device} starts {_text(second)} at {second.start_s:g}, before {_text(first)} ends at {end_s:g}"
                )


def _dependencies(timetable: Timetable) -> Iterator[str]:
    blocks = {block.name: block for block in timetable.graph.blocks}
    starts = {(slot.block, slot.microbatch): slot.start_s for slots in timetable.order for slot in slots}
    for (name, microbatch), start_s in starts.items():
        for source in blocks[name].after:
            if (source, microbatch) not in starts:
                continue
            delay_s = timetable.graph.delay_s(blocks[source], blocks[name])
            ready_s = starts[source, microbatch] + blocks[source].seconds + delay_s
            if start_s < ready_s - _slack(ready_s):
                yield f"{name!r} of micro-batch {microbatch} starts at {start_s:g}, but {source!r} reaches it at {ready_s:g}"


def _levels(timetable: Timetable, device: int) -> Iterator[tuple[Slot | None, float]]:
    """What a device holds after the start of each of its slots; nothing before the first."""
    change = {block.name: block.memory for block in timetable.graph.blocks}
    level = 0.0
    yield None, level
    for slot in timetable.order[device]:
        level += change.get(slot.block, 0.0)
        yield slot, level


def _memory_faults(timetable: Timetable) -> Iterator[str]:
    for device, limit in enumerate(timetable.graph.memory):
        most = max((abs(block.memory) for block in timetable.graph.blocks), default=0.0)
        for slot, level in _levels(timetable, device):
            if slot is not None and level > limit + _TOLERANCE * max(most, limit if limit < float("inf") else most):
                yield f"device {device} holds {level:g} of {limit:g} from {_text(slot)} at {slot.start_s:g} on"


def _text(slot: Slot) -> str:
    return f"{slot.block!r} of micro-batch {slot.microbatch}"


def _slack(moment_s: float) -> float:
    return _TOLERANCE * max(abs(moment_s), 1e-12)
