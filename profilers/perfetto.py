"""Trace files for ui.perfetto.dev and chrome://tracing: a timeline written as JSON, and read back.

`trace_events` defines how a timeline is drawn. Slices and counters hold all of it but the error of its clock and the order of
its counters, which are in "otherData". Reading gives back what was written to the nanosecond, so that a file can be checked
and a stored trace compared. Traces of other programs are refused, since their fields have other meanings.
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autotune.profilers.timeline import Counter, Span, Timeline
from autotune.profilers.trace_events import PHASES, rank_of, trace_events
from autotune.workloads.errors import SpecError
from autotune.workloads.files import read_text, replace_file
from autotune.workloads.serial import from_data, to_data

WRITER = "hetero-autotune"
FORMAT = 1
RULES: dict[type, str] = {float: "a number", int: "a whole number", str: "a text", dict: "an object"}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class _CounterName:
    rank: int
    name: str
    unit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """The content of "otherData"."""

    written_by: str
    format: int
    clock_error_s: float
    counters: tuple[_CounterName, ...]


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write the file in one step: readers see the old content or the new, never a part. Counters that share rank, name
    and unit become one."""
    if wrong := _what_is_wrong(timeline):
        raise SpecError(
            f"cannot write trace {str(path)!r} ({wrong}): times and values must be finite and times in order"
        )
    text = json.dumps(_trace(timeline), allow_nan=False, separators=(",", ":")) + "\n"
    try:
        replace_file(path, text)
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_trace_file(path: Path) -> None:
    """Refuse a path that `write_trace` could not write, before a run that may take long."""
    if path.is_dir():
        raise _cannot_write(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from error


def read_trace(path: Path) -> Timeline:
    """The timeline that `write_trace` wrote there."""
    data = _load(path)
    try:
        return _timeline(data)
    except SpecError as error:
        raise SpecError(f"trace {str(path)!r} is damaged ({error}): write it anew from its timeline") from error


def _what_is_wrong(timeline: Timeline) -> str:
    """Why a timeline cannot be drawn; empty if it can."""
    for span in timeline.spans:
        if not -math.inf < span.start_s <= span.end_s < math.inf:
            return f"{span.op!r} of rank {span.rank} lasts from {span.start_s:g} s to {span.end_s:g} s"
    for counter in timeline.counters:
        for moment_s, value in counter.points:
            if not (math.isfinite(moment_s) and math.isfinite(value)):
                return f"{counter.name!r} of rank {counter.rank} is {value:g} at {moment_s:g} s"
    return "" if math.isfinite(timeline.clock_error_s) else f"its clock error is {timeline.clock_error_s:g} s"


def _trace(timeline: Timeline) -> dict[str, Any]:
    names = (_CounterName(rank=c.rank, name=c.name, unit=c.unit) for c in timeline.counters)
    header = _Header(
        written_by=WRITER, format=FORMAT, clock_error_s=timeline.clock_error_s, counters=tuple(dict.fromkeys(names))
    )
    return {"traceEvents": trace_events(timeline), "displayTimeUnit": "ms", "otherData": to_data(header)}


def _cannot_write(path: Path, error: OSError) -> SpecError:
    return SpecError(f"cannot write trace {str(path)!r}: {error.strerror}: name another file")


def _load(path: Path) -> dict[str, Any]:
    """The file's JSON, if it is a trace that we wrote."""
    try:
        text = read_text(path)
        if not text.strip():
            raise SpecError(f"trace {str(path)!r} is empty: write it anew from its timeline")
        data = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_whole_number)
    except OSError as error:
        raise SpecError(
            f"cannot read trace {str(path)!r}: {error.strerror}: name a file that {WRITER} wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"trace {str(path)!r} is cut off or no JSON ({error}): write it anew from its timeline, or name another file"
        ) from error
    if strange := _what_is_strange(data):
        raise SpecError(f"{str(path)!r} is not a trace that {WRITER} wrote ({strange}): name one that it wrote")
    if (version := data["otherData"].get("format")) != FORMAT:
        raise SpecError(
            f"trace {str(path)!r} has format {version!r} but this version reads {FORMAT}: use the version that wrote it"
        )
    return dict(data)


def _what_is_strange(data: Any) -> str:
    """Why this is some other program's file; empty if it is ours."""
    if not isinstance(data, dict):
        return f"it holds JSON of type {type(data).__name__}, not an object"
    if not isinstance(data.get("traceEvents"), list):
        return 'it has no list "traceEvents"'
    header = data.get("otherData")
    if not isinstance(header, dict) or header.get("written_by") != WRITER:
        return f'its "otherData" does not say "written_by": "{WRITER}"'
    return ""


def _number(text: str) -> float:
    """Refuses NaN and Infinity, which Python would read, and 1e999, which it would read as infinity."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def _whole_number(text: str) -> int:
    if len(text) > 18:
        raise ValueError(f"{text[:18]}... has too many digits")
    return int(text)


def _timeline(data: dict[str, Any]) -> Timeline:
    header = from_data(_Header, data["otherData"], "otherData")
    points: dict[_CounterName, list[tuple[float, float]]] = {name: [] for name in header.counters}
    spans = []
    for index, event in enumerate(data["traceEvents"]):
        where = f"traceEvents[{index}]"
        phase = event.get("ph") if isinstance(event, dict) else None
        if phase == "X":
            spans.append(_span(event, where))
        elif phase == "C":
            _add_point(points, event, where)
        elif phase not in ("M", *PHASES):
            raise SpecError(f"{where} has 'ph' {phase!r}: it must be one of {', '.join(('M', *PHASES))}")
    counters = (Counter(rank=c.rank, name=c.name, unit=c.unit, points=tuple(points[c])) for c in points)
    spans.sort(key=lambda span: span.start_s)
    return Timeline(spans=tuple(spans), counters=tuple(counters), clock_error_s=header.clock_error_s)


def _span(event: dict[str, Any], where: str) -> Span:
    args = _field(event, "args", dict, where)
    start_ns, duration_ns = (round(_field(event, key, float, where) * 1000) for key in ("ts", "dur"))
    if duration_ns < 0:
        raise SpecError(f"{where}.dur is {event['dur']}: it must be at least 0")
    return Span(
        rank=_rank(event, where),
        track=_field(event, "cat", str, where),
        kind=_field(args, "kind", str, f"{where}.args"),
        op=_field(args, "op", str, f"{where}.args"),
        start_s=start_ns / 1e9,
        end_s=(start_ns + duration_ns) / 1e9,
        num_bytes=_field(args, "bytes", int, f"{where}.args"),
    )


def _add_point(points: dict[_CounterName, list[tuple[float, float]]], event: dict[str, Any], where: str) -> None:
    """Put a counter's point to those of the same counter."""
    rank, title = _rank(event, where), _field(event, "name", str, where)
    moment_s = round(_field(event, "ts", float, where) * 1000) / 1e9
    values = _field(event, "args", dict, where)
    for unit in values:
        name = _CounterName(rank=rank, name=title, unit=unit)
        if name not in points:
            raise SpecError(f"{where} is a point of {title!r} in {unit!r}: otherData.counters must list it")
        points[name].append((moment_s, _field(values, unit, float, f"{where}.args")))


def _rank(event: dict[str, Any], where: str) -> int:
    if (rank := rank_of(_field(event, "pid", int, where))) < 0:
        raise SpecError(f"{where}.pid is {event['pid']}: it must be the rank plus 1")
    return rank


def _field(table: dict[str, Any], key: str, kind: type[T], where: str) -> T:
    """The same errors as `from_data`, at less cost: a trace has many events."""
    if key not in table:
        raise SpecError(f"{where} lacks {key!r}: add it")
    value = table[key]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise SpecError(f"{where}.{key} is {value!r}: it must be {RULES[kind]}")
    return value
