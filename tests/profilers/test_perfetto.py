"""Trace files: valid by the rules of the format, every arrow ends on slices, and reading gives back what was written.

Perfetto's own trace_processor is a binary that its Python package downloads on first use, which tests must not do. `imported`
below applies its rules instead: slices of a thread are a stack, and a flow event belongs to the slice on top.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from autotune.profilers.perfetto import check_trace_file, read_trace, write_trace
from autotune.profilers.timeline import Counter, Span, Timeline
from autotune.workloads.errors import SpecError

NUM_RANDOM = 150
NS = 1e-9


TRACKS = {"data": "host", "wait": "host", "comm": "comm", "queue": "comm", "write": "disk"}


def span(rank: int, kind: str, start_s: float, end_s: float, op: str = "") -> Span:
    """Collectives and queues carry bytes."""
    track = TRACKS.get(kind, "compute")
    num_bytes = 4096 + rank if track == "comm" else 0
    return Span(rank=rank, track=track, kind=kind, op=op or kind, start_s=start_s, end_s=end_s, num_bytes=num_bytes)


STEP = Timeline.merge(
    [
        Timeline(
            spans=(
                span(rank, "data", 0.0, 0.001),
                span(rank, "forward", 0.001, 0.002),
                span(rank, "backward", 0.002, 0.005),
                span(rank, "queue", 0.003, 0.0035, "b0"),
                span(rank, "comm", 0.0035, 0.006, "b0"),
                span(rank, "comm", 0.004, 0.0065, "b1"),
                span(rank, "wait", 0.005, 0.0065),
                span(rank, "optimizer", 0.0065, 0.007),
            ),
            counters=(Counter(rank=rank, name="power", unit="W", points=((0.0, 80.5), (0.005, 120.25))),),
            clock_error_s=2e-6,
        )
        for rank in (0, 1)
    ]
)
"""Two ranks, two buckets that overlap; the first of them waited in a queue."""


def written(timeline: Timeline, folder: Path) -> dict[str, Any]:
    write_trace(timeline, folder / "trace.json")
    data = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def random_timeline(generator: random.Random) -> Timeline:
    """Anything on any track: times of any fineness, overlaps, equal starts, no length, odd names, far clocks."""
    scale, origin = generator.choice(((1e-9, 0.0), (1e-6, -1.0), (1e-3, 0.0), (0.1, 12_345.678)))
    kinds = ("forward", "backward", "optimizer", "queue", "comm", "comm", "data", "wait", "write")
    spans = []
    for _ in range(generator.randint(0, 60)):
        op = generator.choice(("a", "b", "layer.0", 'od"d\n', "größe"))
        start = generator.choice((generator.randint(0, 9), generator.uniform(0, 9)))
        length = generator.choice((0, generator.randint(0, 5), generator.random()))
        moments = (origin + scale * start, origin + scale * (start + length))
        spans.append(span(generator.choice((0, 1, 5)), generator.choice(kinds), *moments, op))
    counters = []
    for rank, name, unit in {
        (generator.randint(0, 7), *generator.choice((("power", "W"), ("t", "°C")))) for _ in range(3)
    }:
        moments = sorted(origin + scale * generator.uniform(0, 9) for _ in range(generator.choice((0, 3, 10))))
        points = tuple((moment, generator.uniform(-1e3, 1e9)) for moment in moments)
        counters.append(Counter(rank=rank, name=name, unit=unit, points=points))
    clock_error_s = generator.choice((0.0, generator.random()))
    return Timeline.merge([Timeline(spans=tuple(spans), counters=tuple(counters), clock_error_s=clock_error_s)])


# --- an importer of our own --------------------------------------------------------------------------------------------


def ns(value: Any) -> int:
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    return round(value * 1000)


def imported(data: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Check a trace against the rules of the format; the slices that each arrow leads through, by its id."""
    events = data["traceEvents"]
    happened = [event for event in events if event["ph"] != "M"]
    moments = [ns(event["ts"]) for event in happened]
    assert moments == sorted(moments)
    check_names([event for event in events if event["ph"] == "M"], happened)
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    phases: dict[int, str] = defaultdict(str)
    longest_first = sorted(happened, key=lambda e: (ns(e["ts"]), -ns(e["dur"]) if e["ph"] == "X" else 1))
    for event in longest_first:
        now = ns(event["ts"])
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
            continue
        stack = stacks[event["pid"], event["tid"]]
        while event["ph"] == "X" and stack and end_of(stack[-1]) <= now:
            stack.pop()
        if event["ph"] == "X":
            assert ns(event["dur"]) >= 0
            assert not stack or end_of(event) <= end_of(stack[-1]), f"{event} overlaps {stack[-1]}"
            stack.append(event)
        else:
            assert event["ph"] in "stf"
            assert (event["bp"], event["cat"], event["name"]) == ("e", "flow", "gradients")
            assert stack, f"{event} is on no slice"
            assert ns(stack[-1]["ts"]) == now
            arrows[event["id"]].append(stack[-1])
            phases[event["id"]] += event["ph"]
    assert set(phases.values()) <= {"sf", "stf"}
    return arrows


def end_of(event: dict[str, Any]) -> int:
    return ns(event["ts"]) + ns(event["dur"])


def check_names(names: list[dict[str, Any]], happened: list[dict[str, Any]]) -> None:
    """Every process and thread has a title and a place; thread numbers are unique and no process's."""
    processes = {event["pid"] for event in happened}
    threads = {(event["pid"], event["tid"]) for event in happened if "tid" in event}
    for what, known in (("process", processes), ("thread", threads)):
        for about in (f"{what}_name", f"{what}_sort_index"):
            mine = [event for event in names if event["name"] == about]
            keys = [event["pid"] if what == "process" else (event["pid"], event["tid"]) for event in mine]
            assert len(keys) == len(set(keys))
            assert set(keys) >= known
    numbers = [tid for _, tid in threads]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & {event["pid"] for event in names}
    assert all(pid >= 1 for pid in processes)


def expected_arrows(timeline: Timeline) -> list[list[tuple[str, int, int]]]:
    """Kind, rank and start of the slices of each arrow, looked for collective by collective."""

    def key(one: Span) -> tuple[str, int, int]:
        return one.kind, one.rank, round(one.start_s * 1e9)

    arrows = []
    for one in timeline.spans:
        mine = [other for other in timeline.spans if other.rank == one.rank]
        start, end = key(one)[2], round(one.end_s * 1e9)
        queued = [key(o) for o in mine if o.kind == "queue" and o.op == one.op and key(o)[2] <= start]
        around = [key(o) for o in mine if o.kind == "backward" and key(o)[2] <= start <= round(o.end_s * 1e9)]
        after = [key(o) for o in mine if o.kind == "optimizer" and key(o)[2] >= end]
        if one.kind == "comm" and (queued or around or after):
            arrows.append([*sorted(queued or around)[-1:], key(one), *sorted(after)[:1]])
    return arrows


# --- what is in a trace ------------------------------------------------------------------------------------------------


def test_random_traces_are_valid_and_their_arrows_lead_from_gradients_to_collectives_to_optimizers(
    tmp_path: Path,
) -> None:
    generator = random.Random(4)
    num_arrows = 0
    for _ in range(NUM_RANDOM):
        timeline = random_timeline(generator)
        arrows = imported(written(timeline, tmp_path))
        found = [[(e["args"]["kind"], e["pid"] - 1, ns(e["ts"])) for e in arrow] for arrow in arrows.values()]
        assert sorted(found) == sorted(expected_arrows(timeline))
        num_arrows += len(arrows)
    assert num_arrows > NUM_RANDOM


def test_the_step_has_an_arrow_for_each_bucket_of_each_rank(tmp_path: Path) -> None:
    arrows = imported(written(STEP, tmp_path))
    found = [[(event["pid"], event["name"]) for event in arrow] for arrow in arrows.values()]
    assert sorted(found) == [
        [(1, "b0 (queued)"), (1, "b0"), (1, "optimizer")],
        [(1, "backward"), (1, "b1"), (1, "optimizer")],
        [(2, "b0 (queued)"), (2, "b0"), (2, "optimizer")],
        [(2, "backward"), (2, "b1"), (2, "optimizer")],
    ]


def test_ranks_are_processes_and_tracks_threads_in_order(tmp_path: Path) -> None:
    names = [event for event in written(STEP, tmp_path)["traceEvents"] if event["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    assert processes == {1: "rank 0", 2: "rank 1"}
    places = {e["tid"]: e["args"]["sort_index"] for e in names if e["name"] == "thread_sort_index"}
    threads = [(e["pid"], places[e["tid"]], e["args"]["name"]) for e in names if e["name"] == "thread_name"]
    assert sorted(threads) == [
        (pid, place, name)
        for pid in (1, 2)
        for place, name in ((0, "compute"), (1, "communication"), (1, "communication 2"), (2, "host"))
    ]


def test_slices_carry_kind_and_bytes_and_times_in_microseconds(tmp_path: Path) -> None:
    timeline = Timeline(spans=(span(3, "comm", 1.5, 1.500_001_001, "b"),))
    (event,) = (event for event in written(timeline, tmp_path)["traceEvents"] if event["ph"] == "X")
    assert (event["ts"], event["dur"]) == (1_500_000.0, 1.001)
    assert event["args"] == {"op": "b", "kind": "comm", "bytes": 4099}
    assert (event["name"], event["cat"], event["pid"]) == ("b", "comm", 4)


def test_counters_are_drawn_by_rank_and_unit(tmp_path: Path) -> None:
    points = [event for event in written(STEP, tmp_path)["traceEvents"] if event["ph"] == "C"]
    assert sorted((e["pid"], e["name"], e["ts"], e["args"]) for e in points if e["pid"] == 1) == [
        (1, "power", 0.0, {"W": 80.5}),
        (1, "power", 5000.0, {"W": 120.25}),
    ]
    assert len(points) == 4


def test_the_clock_error_is_in_the_trace(tmp_path: Path) -> None:
    assert written(STEP, tmp_path)["otherData"]["clock_error_s"] == 2e-6


def test_a_collective_that_leads_nowhere_has_no_arrow(tmp_path: Path) -> None:
    alone = Timeline(spans=(span(0, "comm", 0.0, 1.0), span(0, "backward", 2.0, 3.0)))
    assert imported(written(alone, tmp_path)) == {}


def test_a_rank_that_only_has_counters_is_a_process_and_lends_no_thread_its_number(tmp_path: Path) -> None:
    power = Counter(rank=1, name="power", unit="W", points=((0.0, 1.0),))
    imported(written(Timeline(spans=(span(0, "forward", 0.0, 1.0),), counters=(power,)), tmp_path))


def test_an_empty_timeline_is_a_trace_too(tmp_path: Path) -> None:
    assert written(Timeline(), tmp_path)["traceEvents"] == []
    assert read_trace(tmp_path / "trace.json") == Timeline()


# --- there and back ----------------------------------------------------------------------------------------------------


def test_random_timelines_come_back_to_the_nanosecond(tmp_path: Path) -> None:
    generator = random.Random(5)
    path = tmp_path / "trace.json"
    for _ in range(NUM_RANDOM):
        timeline = random_timeline(generator)
        write_trace(timeline, path)
        back = read_trace(path)
        assert_close(back, timeline)
        write_trace(back, path)
        assert_close(read_trace(path), timeline)


def assert_close(found: Timeline, wanted: Timeline) -> None:
    assert len(found.spans) == len(wanted.spans)
    for mine, other in zip(found.spans, wanted.spans, strict=True):
        assert (mine.rank, mine.track, mine.kind, mine.op) == (other.rank, other.track, other.kind, other.op)
        assert mine.num_bytes == other.num_bytes
        assert abs(mine.start_s - other.start_s) <= NS
        assert abs(mine.end_s - other.end_s) <= NS
    assert len(found.counters) == len(wanted.counters)
    for drawn, given in zip(found.counters, wanted.counters, strict=True):
        assert (drawn.rank, drawn.name, drawn.unit) == (given.rank, given.name, given.unit)
        assert [value for _, value in drawn.points] == [value for _, value in given.points]
        assert all(abs(a - b) <= NS for (a, _), (b, _) in zip(drawn.points, given.points, strict=True))
    assert found.clock_error_s == wanted.clock_error_s


def test_times_of_whole_nanoseconds_come_back_exactly(tmp_path: Path) -> None:
    write_trace(STEP, tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == STEP


def test_counters_of_the_same_name_become_one(tmp_path: Path) -> None:
    early, late = (Counter(rank=0, name="power", unit="W", points=((moment, 1.0),)) for moment in (0.0, 2.0))
    write_trace(Timeline(counters=(late, early)), tmp_path / "trace.json")
    (counter,) = read_trace(tmp_path / "trace.json").counters
    assert counter.points == ((0.0, 1.0), (2.0, 1.0))


# --- writing that fails ------------------------------------------------------------------------------------------------


def test_a_trace_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    write_trace(STEP, path)
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        SpecError, match=r"cannot write trace '.*trace\.json': No space left on device: name another file"
    ):
        write_trace(Timeline(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_written_can_be_refused_before_a_run(tmp_path: Path) -> None:
    check_trace_file(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpecError, match=r"cannot write trace '.*nowhere/trace\.json': No such file"):
        check_trace_file(tmp_path / "nowhere" / "trace.json")
    with pytest.raises(SpecError, match=r"cannot write trace '.*': Is a directory: name another file"):
        check_trace_file(tmp_path)


def test_a_folder_that_is_not_there_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot write trace '.*nowhere/trace\.json': No such file"):
        write_trace(STEP, tmp_path / "nowhere" / "trace.json")


@pytest.mark.parametrize(
    ("timeline", "what"),
    [
        (Timeline(spans=(span(2, "data", 3.0, 1.0),)), r"'data' of rank 2 lasts from 3 s to 1 s"),
        (Timeline(spans=(span(2, "data", float("nan"), 1.0),)), r"'data' of rank 2 lasts from nan s to 1 s"),
        (Timeline(spans=(span(2, "data", 0.0, float("inf")),)), r"'data' of rank 2 lasts from 0 s to inf s"),
        (
            Timeline(counters=(Counter(rank=0, name="power", unit="W", points=((1.0, float("nan")),)),)),
            r"'power' of rank 0 is nan at 1 s",
        ),
        (Timeline(clock_error_s=float("inf")), r"its clock error is inf s"),
    ],
    ids=["backwards", "nan", "endless", "counter", "clock"],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_written(
    timeline: Timeline, what: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=rf"trace\.json' \({what}\): times and values must be finite"):
        write_trace(timeline, tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


# --- files that are no traces of ours ----------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The one line that a bad file is refused with; it names the file."""
    with pytest.raises(SpecError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert repr(str(path)) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("content", ["", " \n\t\n"], ids=["nothing", "blanks"])
def test_an_empty_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert refusal(path) == f"trace {str(path)!r} is empty: write it anew from its timeline"


def test_a_trace_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(STEP, path)
    text = path.read_text()
    for length in [*range(1, len(text) - 2, 97), len(text) - 2]:
        path.write_text(text[:length])
        assert "is cut off or no JSON (" in refusal(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\x00", "is cut off or no JSON ('utf-8' codec"),
        (b"[" * 100_000, "is cut off or no JSON (maximum recursion depth"),
        (
            b"[]",
            "is not a trace that hetero-autotune wrote (it holds JSON of type list, not an object): name one that it wrote",
        ),
        (b"7", "(it holds JSON of type int, not an object)"),
        (b'{"spans": []}', '(it has no list "traceEvents")'),
        (b'{"traceEvents": {}}', '(it has no list "traceEvents")'),
        (b'{"traceEvents": []}', '(its "otherData" does not say "written_by": "hetero-autotune")'),
        (b'{"traceEvents": [], "otherData": {"version": "torch"}}', '(its "otherData" does not say'),
        (b'{"traceEvents": [], "otherData": 3}', '(its "otherData" does not say'),
        (
            b'{"traceEvents": [], "otherData": {"written_by": "hetero-autotune", "format": 2}}',
            "has format 2 but this version reads 1: use the version that wrote it",
        ),
    ],
)
def test_another_kind_of_file_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert why in refusal(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot read trace" in refusal(tmp_path / "none.json")
    assert "No such file or directory: name a file that hetero-autotune wrote" in refusal(tmp_path / "none.json")
    assert "Is a directory" in refusal(tmp_path)


def damaged(data: dict[str, Any], phase: str, key: str, value: Any) -> dict[str, Any]:
    """A copy in which the first event of a phase has one field changed, or taken away by the value `...`."""
    copied = copy.deepcopy(data)
    event = next(event for event in copied["traceEvents"] if event["ph"] == phase)
    *folders, last = key.split(".")
    for folder in folders:
        event = event[folder]
    if value is ...:
        del event[last]
    else:
        event[last] = value
    return copied


@pytest.mark.parametrize(
    ("phase", "key", "value", "why"),
    [
        ("X", "dur", ..., "lacks 'dur': add it"),
        ("X", "args", ..., "lacks 'args': add it"),
        ("X", "args.bytes", ..., ".args lacks 'bytes': add it"),
        ("X", "ts", "12", ".ts is '12': it must be a number"),
        ("X", "ts", True, ".ts is True: it must be a number"),
        ("X", "dur", None, ".dur is None: it must be a number"),
        ("X", "dur", -1, ".dur is -1: it must be at least 0"),
        ("X", "pid", "rank 0", ".pid is 'rank 0': it must be a whole number"),
        ("X", "pid", 0, ".pid is 0: it must be the rank plus 1"),
        ("X", "args.bytes", 1.5, ".args.bytes is 1.5: it must be a whole number"),
        ("X", "args", [], ".args is []: it must be an object"),
        ("X", "cat", 3, ".cat is 3: it must be a text"),
        ("X", "ph", "B", "has 'ph' 'B': it must be one of M, X, C, s, t, f"),
        ("X", "ph", ..., "has 'ph' None: it must be one of"),
        ("C", "args.W", "high", ".args.W is 'high': it must be a number"),
        ("C", "name", "heat", "is a point of 'heat' in 'W': otherData.counters must list it"),
        ("C", "pid", -4, ".pid is -4: it must be the rank plus 1"),
        ("C", "ts", ..., "lacks 'ts': add it"),
    ],
)
def test_an_event_that_is_not_as_we_write_it_is_refused_by_its_number(
    phase: str, key: str, value: Any, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(damaged(written(STEP, tmp_path), phase, key, value)))
    text = refusal(path)
    assert why in text
    assert "is damaged (" in text
    assert "traceEvents[" in text
    assert text.endswith("): write it anew from its timeline")


def test_an_event_that_is_no_object_is_refused(tmp_path: Path) -> None:
    data = written(STEP, tmp_path)
    data["traceEvents"].append(5)
    (tmp_path / "trace.json").write_text(json.dumps(data))
    assert "has 'ph' None: it must be one of" in refusal(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("clock_error_s", "1 ms", "otherData.clock_error_s is '1 ms': it must be a number"),
        ("clock_error_s", ..., "otherData lacks 'clock_error_s': add it"),
        ("counters", {}, "otherData.counters is {}: it must be a list"),
        ("counters", [{"rank": 0}], "otherData.counters[0] lacks 'name': add it"),
    ],
)
def test_a_header_that_is_not_as_we_write_it_is_refused(key: str, value: Any, why: str, tmp_path: Path) -> None:
    data = written(STEP, tmp_path)
    if value is ...:
        del data["otherData"][key]
    else:
        data["otherData"][key] = value
    (tmp_path / "trace.json").write_text(json.dumps(data))
    assert why in refusal(tmp_path / "trace.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" * 400])
def test_a_number_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(STEP, path)
    path.write_text(path.read_text().replace('"dur":1000.0', f'"dur":{number}', 1))
    assert "is cut off or no JSON (" in refusal(path)
