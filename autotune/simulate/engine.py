"""The event loop: tasks on serial devices and transfers on shared links, as arrays, compiled.

A task waits for its dependencies, then for its resource. On a *device* one task runs at a time; of the ready tasks the one
with the smallest priority number starts first. A *transfer* waits in a queue for a free slot and for credit (a soft window:
it starts while credit is above zero, and returns its bytes when it has arrived), spends its fixed time, puts its bytes
on every link it loads, and arrives a latency after the last byte. A transfer of several *phases* (link -1 among its loads
separates them) loads the links of one phase after the other. Links either *serialize* transfers, first come first
served, or *share* their bandwidth fairly (max-min) among all transfers in flight.

Deterministic: all events of one moment are handled before a task starts; ties go to the smaller task number. There are no
objects: creating one per task costs more than simulating it. The work per task is written inline in the loop, because
Numba counts references to arrays that a loop passes to a function, which took half of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autotune.simulate.task_graph import JOIN, TRANSFER, Floats, Site, Tasks
from autotune.workloads.errors import SpecError

_BYTES_GO, _ARRIVES = 0, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Start and end of every task, and peaks of memory."""

    start_s: Floats
    end_s: Floats
    peak_bytes: Floats
    """Per device, above the memory that is always held."""
    peak_at_s: Floats

    @property
    def makespan_s(self) -> float:
        return float(self.end_s.max()) if len(self.end_s) else 0.0


def simulate(tasks: Tasks, site: Site) -> Run:
    """Run all tasks. A dependency cycle is an error."""
    start_s, end_s, peak_bytes, peak_at_s, num_done = _loop(
        tasks.device,
        tasks.seconds,
        tasks.priority,
        tasks.num_before,
        tasks.next_from,
        tasks.next_tasks,
        tasks.queue,
        tasks.credit_bytes,
        tasks.latency_s,
        tasks.load_from,
        tasks.load_link,
        tasks.load_bytes,
        tasks.memory_device,
        tasks.memory_at_start,
        tasks.memory_at_end,
        site.num_devices,
        site.link_bytes_per_s,
        site.queue_slots,
        site.queue_credit_bytes,
        site.serialized,
    )
    if num_done < tasks.num_tasks:
        raise SpecError(f"{tasks.num_tasks - num_done} of {tasks.num_tasks} tasks wait for each other in a cycle")
    return Run(start_s=start_s, end_s=end_s, peak_bytes=peak_bytes, peak_at_s=peak_at_s)


@njit(cache=True)
def _event_push(times, codes, count, time, code):
    """A binary heap on (time, code)."""
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] < time or (times[parent] == time and codes[parent] <= code):
            break
        times[at], codes[at] = times[parent], codes[parent]
        at = parent
    times[at], codes[at] = time, code
    return count + 1


@njit(cache=True)
def _event_pop(times, codes, count):
    """Remove the first element, which the caller has read."""
    count -= 1
    time, code, at = times[count], codes[count], 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        right = child + 1
        if right < count and (
            times[right] < times[child] or (times[right] == times[child] and codes[right] < codes[child])
        ):
            child = right
        if time < times[child] or (time == times[child] and code <= codes[child]):
            break
        times[at], codes[at] = times[child], codes[child]
        at = child
    times[at], codes[at] = time, code
    return count


@njit(cache=True)
def _wait_push(heap, base, count, priority, task):
    """A binary heap of tasks on (priority, task), in its own part of one array."""
    at = count
    while at > 0:
        parent = (at - 1) >> 1
        other = heap[base + parent]
        if priority[other] < priority[task] or (priority[other] == priority[task] and other < task):
            break
        heap[base + at] = other
        at = parent
    heap[base + at] = task


@njit(cache=True)
def _wait_pop(heap, base, count, priority):
    """Take the first of `count`."""
    first, task, at = heap[base], heap[base + count - 1], 0
    count -= 1
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        left, right = heap[base + child], heap[base + min(child + 1, count - 1)]
        if priority[right] < priority[left] or (priority[right] == priority[left] and right < left):
            child, left = child + 1, right
        if priority[task] < priority[left] or (priority[task] == priority[left] and task < left):
            break
        heap[base + at] = left
        at = child
    heap[base + at] = task
    return first


@njit(cache=True)
def _share(active, num_active, rate, phase_from, phase_to, load_link, load_bytes, bandwidth, spare, weight):
    """Max-min fair rates of the transfers in flight, in shares of the transfer per second (progressive filling).

    Rates are fair in bytes: a transfer counts on a link by its load there over its largest load.
    """
    for k in range(num_active):
        task = active[k]
        rate[task] = -1.0
        for j in range(phase_from[task], phase_to[task]):
            spare[load_link[j]] = bandwidth[load_link[j]]
    undecided = num_active
    while undecided > 0:
        for k in range(num_active):
            task = active[k]
            for j in range(phase_from[task], phase_to[task]):
                weight[load_link[j]] = 0.0
        for k in range(num_active):
            task = active[k]
            if rate[task] < 0.0:
                most = 0.0
                for j in range(phase_from[task], phase_to[task]):
                    most = max(most, load_bytes[j])
                for j in range(phase_from[task], phase_to[task]):
                    weight[load_link[j]] += load_bytes[j] / most
        tightest, level = -1, np.inf
        for k in range(num_active):
            task = active[k]
            if rate[task] < 0.0:
                for j in range(phase_from[task], phase_to[task]):
                    link = load_link[j]
                    if weight[link] > 0.0 and max(spare[link], 0.0) / weight[link] < level:
                        tightest, level = link, max(spare[link], 0.0) / weight[link]
        for k in range(num_active):
            task = active[k]
            if rate[task] >= 0.0:
                continue
            most, is_tight = 0.0, False
            for j in range(phase_from[task], phase_to[task]):
                most = max(most, load_bytes[j])
                is_tight |= load_link[j] == tightest and load_bytes[j] > 0.0
            if is_tight:
                rate[task] = level / most
                undecided -= 1
                for j in range(phase_from[task], phase_to[task]):
                    spare[load_link[j]] -= level * load_bytes[j] / most


@njit(cache=True)
def _loop(
    device,
    seconds,
    priority,
    num_before,
    next_from,
    next_tasks,
    queue,
    credit_bytes,
    latency_s,
    load_from,
    load_link,
    load_bytes,
    memory_device,
    memory_at_start,
    memory_at_end,
    num_devices,
    bandwidth,
    queue_slots,
    queue_credit,
    serialized,
):
    num_tasks, num_queues = len(device), len(queue_slots)
    start_s, end_s = np.full(num_tasks, -1.0), np.full(num_tasks, -1.0)
    before = num_before.copy()

    # Wait queues: those of devices, then those of transfers, each a section of one array.
    num_places = num_devices + num_queues
    waiting, base = np.zeros(num_places, np.int64), np.zeros(num_places + 1, np.int64)
    for task in range(num_tasks):
        if device[task] >= 0:
            base[device[task] + 1] += 1
        elif device[task] == TRANSFER:
            base[num_devices + queue[task] + 1] += 1
    for place in range(num_places):
        base[place + 1] += base[place]
    heap = np.empty(max(base[num_places], 1), np.int64)
    busy = np.zeros(num_devices, np.bool_)
    slots, credit = queue_slots.copy(), queue_credit.copy()

    # Events: (moment, 2 · task + what happens).
    times, codes, num_events = np.empty(num_tasks + 1), np.empty(num_tasks + 1, np.int64), 0
    free_s = np.zeros(len(bandwidth))
    active, num_active = np.empty(num_tasks if not serialized else 1, np.int64), 0
    rate, left = np.zeros(num_tasks if not serialized else 1), np.zeros(num_tasks if not serialized else 1)
    spare, weight = np.zeros(len(bandwidth)), np.zeros(len(bandwidth))
    phase_from, phase_to = load_from[:num_tasks].copy(), np.zeros(num_tasks if not serialized else 1, np.int64)
    changed, now, num_done = False, 0.0, 0
    held, peak, peak_at = np.zeros(num_devices), np.zeros(num_devices), np.zeros(num_devices)
    touched, num_touched = np.empty(num_places, np.int64), 0
    is_touched = np.zeros(num_places, np.bool_)

    ready, num_ready = np.empty(num_tasks, np.int64), 0
    for task in range(num_tasks):
        if before[task] == 0:
            ready[num_ready] = task
            num_ready += 1

    while True:
        # A ready task waits for its resource; a join needs none.
        for k in range(num_ready):
            task = ready[k]
            if device[task] == JOIN:
                start_s[task] = now
                num_events = _event_push(times, codes, num_events, now + seconds[task], 2 * task + _ARRIVES)
            else:
                place = device[task] if device[task] >= 0 else num_devices + queue[task]
                if waiting[place] == 0:
                    heap[base[place]] = task
                else:
                    _wait_push(heap, base[place], waiting[place], priority, task)
                waiting[place] += 1
                if not is_touched[place]:
                    is_touched[place], touched[num_touched] = True, place
                    num_touched += 1
        num_ready = 0

        if num_events > 0 and times[0] <= now:
            code = codes[0]
            num_events = _event_pop(times, codes, num_events)
            task = code >> 1
            if code & 1 == _BYTES_GO:
                loads, stop, end = 0.0, phase_from[task], load_from[task + 1]
                while stop < end and (load_link[stop] >= 0 or loads == 0.0):
                    if load_link[stop] < 0:  # an empty phase
                        phase_from[task] = stop + 1
                    else:
                        loads += load_bytes[stop]
                    stop += 1
                if loads == 0.0:
                    num_events = _event_push(times, codes, num_events, now + latency_s[task], 2 * task + _ARRIVES)
                elif serialized:
                    last_s = now
                    for j in range(phase_from[task], stop):
                        if load_bytes[j] > 0.0:
                            link = load_link[j]
                            free_s[link] = max(now, free_s[link]) + load_bytes[j] / bandwidth[link]
                            last_s = max(last_s, free_s[link])
                    if stop < end:
                        phase_from[task] = stop + 1
                        num_events = _event_push(times, codes, num_events, last_s, 2 * task + _BYTES_GO)
                        continue
                    num_events = _event_push(times, codes, num_events, last_s + latency_s[task], 2 * task + _ARRIVES)
                else:
                    active[num_active], left[task], phase_to[task] = task, 1.0, stop
                    num_active += 1
                    changed = True
                continue
            end_s[task] = now
            num_done += 1
            if device[task] != JOIN:
                if device[task] >= 0:
                    place = device[task]
                    busy[place] = False
                else:
                    place = num_devices + queue[task]
                    slots[queue[task]] += 1
                    credit[queue[task]] += credit_bytes[task]
                if not is_touched[place]:
                    is_touched[place], touched[num_touched] = True, place
                    num_touched += 1
            holder = memory_device[task]
            if holder >= 0:
                held[holder] += memory_at_end[task]
                if held[holder] > peak[holder]:
                    peak[holder], peak_at[holder] = held[holder], now
            for j in range(next_from[task], next_from[task + 1]):
                follower = next_tasks[j]
                before[follower] -= 1
                if before[follower] == 0:
                    ready[num_ready] = follower
                    num_ready += 1
            continue

        # All events of this moment are handled: each free resource takes the first task of its queue.
        for t in range(num_touched):
            place = touched[t]
            is_touched[place] = False
            while waiting[place] > 0:
                if place < num_devices:
                    if busy[place]:
                        break
                elif slots[place - num_devices] <= 0 or credit[place - num_devices] <= 0.0:
                    break
                task = _wait_pop(heap, base[place], waiting[place], priority)
                waiting[place] -= 1
                start_s[task] = now
                holder = memory_device[task]
                if holder >= 0:
                    held[holder] += memory_at_start[task]
                    if held[holder] > peak[holder]:
                        peak[holder], peak_at[holder] = held[holder], now
                if place < num_devices:
                    busy[place] = True
                    num_events = _event_push(times, codes, num_events, now + seconds[task], 2 * task + _ARRIVES)
                else:
                    slots[place - num_devices] -= 1
                    credit[place - num_devices] -= credit_bytes[task]
                    num_events = _event_push(times, codes, num_events, now + seconds[task], 2 * task + _BYTES_GO)
        num_touched = 0

        # Advance to the next event.
        if num_events == 0 and num_active == 0:
            break
        if changed:
            _share(active, num_active, rate, phase_from, phase_to, load_link, load_bytes, bandwidth, spare, weight)
            changed = False
        moment = times[0] if num_events > 0 else np.inf
        for k in range(num_active):
            moment = min(moment, now + left[active[k]] / rate[active[k]])
        elapsed, now = moment - now, moment
        kept = 0
        for k in range(num_active):
            task = active[k]
            left[task] -= elapsed * rate[task]
            if left[task] <= 1e-12 or now + left[task] / rate[task] <= now:
                changed = True
                if phase_to[task] < load_from[task + 1]:
                    phase_from[task] = phase_to[task] + 1
                    num_events = _event_push(times, codes, num_events, now, 2 * task + _BYTES_GO)
                else:
                    num_events = _event_push(times, codes, num_events, now + latency_s[task], 2 * task + _ARRIVES)
            else:
                active[kept] = task
                kept += 1
        num_active = kept
    return start_s, end_s, peak, peak_at, num_done
