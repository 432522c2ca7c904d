"""A timeline as events of Chromium's "Trace Event Format", which Perfetto and chrome://tracing draw.

A rank is a process, a track a thread, a span a complete event ("X"), a counter's point a counter event ("C"). Slices of one
thread may nest but not overlap otherwise (Perfetto drops the later one), so a track gets as many threads as it needs.
Arrows lead from where a collective's gradients became ready to the collective and on to the optimizer. An arrow has no
slice of its own: it belongs to the slice that is open on its thread at its moment. So arrows touch slices at their start,
and no two slices of a thread start at the same nanosecond.

Binding of arrows, order at equal moments and rounding of times follow Perfetto's JSON importer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from autotune.profilers.timeline import Counter, Span, Timeline

Event: TypeAlias = dict[str, Any]

TRACK_TITLES = {"compute": "compute", "comm": "communication", "host": "host"}
PHASES = ("X", "C", "s", "t", "f")
"""Order of events at the same time: a slice precedes the arrows that touch it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Thread:
    """A row of slices that do not overlap."""

    rank: int
    tid: int
    title: str
    place: int
    """The position of its track in the view."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slice:
    """A span on its thread."""

    span: Span
    thread: _Thread
    start_ns: int
    end_ns: int

    def leaves_free(self, start_ns: int) -> bool:
        return self.end_ns <= start_ns and self.start_ns < start_ns


def trace_events(timeline: Timeline) -> list[Event]:
    """Names first, then all events in order of time; spans of equal start keep their order."""
    ranks = sorted({span.rank for span in timeline.spans} | {counter.rank for counter in timeline.counters})
    slices = _slices(timeline.spans, first_tid=process_of(max(ranks, default=0)) + 1)
    events = [*map(_slice_event, slices), *_counter_events(timeline.counters), *_flow_events(slices)]
    events.sort(key=lambda event: (event["ts"], PHASES.index(event["ph"])))
    return [*_names(ranks, {slice_.thread for slice_ in slices}), *events]


def process_of(rank: int) -> int:
    """Process 0 is the idle task to Perfetto."""
    return rank + 1


def rank_of(process: int) -> int:
    return process - 1


def _slices(spans: Iterable[Span], *, first_tid: int) -> list[_Slice]:
    """Each span on the first thread of its track that is free by then. No thread has the number of a process: Perfetto would
    take it for the main thread and give it the process's name."""
    tids = count(first_tid)
    latest: dict[tuple[int, str], list[_Slice]] = defaultdict(list)
    slices = []
    for span in sorted(spans, key=lambda span: span.start_s):
        start_ns, end_ns = round(span.start_s * 1e9), round(span.end_s * 1e9)
        rows = latest[span.rank, span.track]
        row = next((row for row, last in enumerate(rows) if last.leaves_free(start_ns)), len(rows))
        thread = rows[row].thread if row < len(rows) else _thread(span, row, next(tids))
        rows[row : row + 1] = [_Slice(span=span, thread=thread, start_ns=start_ns, end_ns=end_ns)]
        slices.append(rows[row])
    return slices


def _thread(span: Span, row: int, tid: int) -> _Thread:
    title = TRACK_TITLES.get(span.track, span.track)
    place = [*TRACK_TITLES, span.track].index(span.track)
    return _Thread(rank=span.rank, tid=tid, title=f"{title} {row + 1}" if row else title, place=place)


def _names(ranks: Iterable[int], threads: Iterable[_Thread]) -> Iterator[Event]:
    """Metadata: titles of processes and threads, and their order in the view."""
    for rank in ranks:
        process = {"ph": "M", "pid": process_of(rank)}
        yield {**process, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": rank}}
    for thread in sorted(threads, key=lambda thread: thread.tid):
        row = {"ph": "M", "pid": process_of(thread.rank), "tid": thread.tid}
        yield {**row, "name": "thread_name", "args": {"name": thread.title}}
        yield {**row, "name": "thread_sort_index", "args": {"sort_index": thread.place}}


def _slice_event(slice_: _Slice) -> Event:
    span = slice_.span
    return {
        "ph": "X",
        "name": f"{span.op} (queued)" if span.kind == "queue" else span.op,
        "cat": span.track,
        "pid": process_of(span.rank),
        "tid": slice_.thread.tid,
        "ts": slice_.start_ns / 1000,
        "dur": (slice_.end_ns - slice_.start_ns) / 1000,
        "args": {"op": span.op, "kind": span.kind, "bytes": span.num_bytes},
    }


def _counter_events(counters: Iterable[Counter]) -> Iterator[Event]:
    for counter in counters:
        for moment_s, value in counter.points:
            place = {"pid": process_of(counter.rank), "ts": round(moment_s * 1e9) / 1000}
            yield {"ph": "C", "name": counter.name, **place, "args": {counter.unit: value}}


def _flow_events(slices: Iterable[_Slice]) -> Iterator[Event]:
    """An arrow per collective and rank. Perfetto identifies arrows by name, category and id together."""
    of_rank: dict[int, list[_Slice]] = defaultdict(list)
    for slice_ in slices:
        of_rank[slice_.span.rank].append(slice_)
    chains = (chain for rank in sorted(of_rank) for chain in _chains(of_rank[rank]))
    for number, chain in enumerate(chains, start=1):
        phases = ["s", *"t" * (len(chain) - 2), "f"]
        for phase, slice_ in zip(phases, chain, strict=True):
            place = {"pid": process_of(slice_.span.rank), "tid": slice_.thread.tid, "ts": slice_.start_ns / 1000}
            yield {"ph": phase, "id": number, "name": "gradients", "cat": "flow", "bp": "e", **place}


def _chains(slices: Sequence[_Slice]) -> Iterator[list[_Slice]]:
    """For each collective of one rank whose slices are given in order: where its gradients became ready, itself, and the
    optimizer step that follows. A collective that has neither of the two has no arrow."""
    of_kind: dict[str, list[_Slice]] = defaultdict(list)
    queued: dict[str, list[_Slice]] = defaultdict(list)
    for slice_ in slices:
        of_kind[slice_.span.kind].append(slice_)
        if slice_.span.kind == "queue":
            queued[slice_.span.op].append(slice_)
    for slice_ in of_kind["comm"]:
        enclosing = (one for one in _started_by(of_kind["backward"], slice_) if one.end_ns >= slice_.start_ns)
        ready = next(_started_by(queued[slice_.span.op], slice_), None) or next(enclosing, None)
        after = bisect_left(of_kind["optimizer"], slice_.end_ns, key=lambda one: one.start_ns)
        chain = [*([ready] if ready else []), slice_, *of_kind["optimizer"][after : after + 1]]
        if len(chain) > 1:
            yield chain


def _started_by(slices: Sequence[_Slice], slice_: _Slice) -> Iterator[_Slice]:
    """Those that started no later than another, the latest first."""
    end = bisect_right(slices, slice_.start_ns, key=lambda one: one.start_ns)
    return (slices[index] for index in reversed(range(end)))
