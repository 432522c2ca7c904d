"""Scenario files: TOML to a Scenario. `docs/files.md` describes the format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from autotune.workloads.changes.scenario import Course, Scenario, Walk
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.quantity import BYTES_PER_S, parse_quantity
from autotune.workloads.serial import known_keys, load_table, table_names

SCENARIO_FOLDER = Path(__file__).parent.parent / "scenarios"
CLOCKS = ("step", "time")
_MOST_CHANGES = 10_000
"""Of one table: a change per step for longer than scenarios are replayed."""


def scenario_names() -> list[str]:
    """The scenarios that ship with the package."""
    return table_names(SCENARIO_FOLDER)


def load_scenario(spec: str) -> Scenario:
    """A shipped scenario by name, or a TOML file by path."""
    path, data = load_table(spec, SCENARIO_FOLDER, "scenario", remedy="your own: --replay FILE.toml")
    return parse_scenario(data, where=path.name, name=path.stem)


def parse_scenario(data: dict[str, Any], *, where: str, name: str) -> Scenario:
    """A Scenario from the tables of a scenario file."""
    known_keys(data, ("description", "clock", "period", "change", "drift", "walk"), where)
    clock = data.get("clock", "step")
    if clock not in CLOCKS:
        raise unknown_name(f"clock in {where}:", str(clock), CLOCKS)
    courses = []
    for kind, parse in (("change", _change), ("drift", _drift), ("walk", _walk)):
        tables = data.get(kind, [])
        if not isinstance(tables, list):
            raise SpecError(f"{where}: write [[{kind}]], with two brackets")
        courses += [parse(table, f"{where} [[{kind}]] {index}") for index, table in enumerate(tables)]
    period = None if "period" not in data else _number(data, "period", where, above=0.0)
    last = max((moment for course in courses for moment, _ in course.points_of(0)), default=0.0)
    if period is not None and period <= last:
        raise SpecError(f"{where} starts over after {period:g} but still changes at {last:g}: make the period longer")
    description = str(data.get("description", ""))
    return Scenario(name=name, courses=tuple(courses), clock=clock, period=period, description=description)


def _change(table: dict[str, Any], where: str) -> Course:
    """`at`, a host or a rank, and one quantity: a share of what the cluster file states, or a bandwidth or cores."""
    what, target = _subject(table, ("at",), where)
    value, is_fraction = table[what], what != "cpus"
    if what == "bandwidth" and isinstance(value, str):
        value, is_fraction = parse_quantity(value, BYTES_PER_S, f"{where} bandwidth"), False
    amount = _number({what: value}, what, where, above=0.0)
    moment = _number(table, "at", where)
    return Course(what=what, target=target, points=((moment, amount),), is_fraction=is_fraction)


def _drift(table: dict[str, Any], where: str) -> Course:
    """From one value to another in equal parts."""
    what, target = _subject(table, ("from", "until", "every"), where)
    first, last = _pair(table, what, where)
    begin, end, every = (_number(table, key, where) for key in ("from", "until", "every"))
    if every <= 0 or end <= begin:
        raise SpecError(f"{where} goes from {begin:g} until {end:g} every {every:g}: it must go forward")
    count = _count((end - begin) / every, where)
    points = tuple((begin + i * every, first + (last - first) * i / count) for i in range(count + 1))
    return Course(what=what, target=target, points=points, is_fraction=what != "cpus")


def _walk(table: dict[str, Any], where: str) -> Course:
    what, target = _subject(table, ("seed", "every", "until"), where)
    low, high = sorted(_pair(table, what, where))
    every, until = _number(table, "every", where, above=0.0), _number(table, "until", where, above=0.0)
    _count(until / every, where)
    walk = Walk(seed=int(_number(table, "seed", where)), every=every, until=until, low=low, high=high)
    return Course(what=what, target=target, walk=walk, is_fraction=what != "cpus")


def _subject(table: Any, keys: tuple[str, ...], where: str) -> tuple[str, str]:
    """The quantity of a table, and its host or rank."""
    known_keys(table, (*keys, "host", "rank", "bandwidth", "cpus", "speed"), where)
    given = [key for key in ("bandwidth", "cpus", "speed") if key in table]
    owner = "rank" if given == ["speed"] else "host"
    missing = [key for key in (*keys, owner) if key not in table]
    if len(given) != 1 or missing:
        lacks = f"states {' and '.join(given) or 'nothing to change'}"
        if len(given) == 1:
            lacks = f"lacks {', '.join(missing)}"
        raise SpecError(
            f"{where} {lacks}: state {', '.join(keys)}, and either a host with its bandwidth or cpus, or a rank with its speed"
        )
    target = table[owner]
    if isinstance(target, bool) or not isinstance(target, int | str):
        raise SpecError(f'{where} {owner} is {target!r}: it must be a number, a name, or "*" for all')
    return given[0], str(target)


def _count(changes: float, where: str) -> int:
    if changes > _MOST_CHANGES:
        raise SpecError(
            f"{where} has {changes:.4g} changes: at most {_MOST_CHANGES} are read: make 'every' longer or 'until' earlier"
        )
    return max(round(changes), 1)


def _pair(table: dict[str, Any], what: str, where: str) -> tuple[float, float]:
    value = table[what]
    if not isinstance(value, list) or len(value) != 2:
        raise SpecError(f"{where} {what} is {value!r}: write two numbers, such as [1.0, 0.5]")
    first, last = (_number({what: entry}, what, where, above=0.0) for entry in value)
    return first, last


def _number(table: dict[str, Any], key: str, where: str, *, above: float | None = None) -> float:
    value = table[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < math.inf
        or (above is not None and value <= above)
    ):
        rule = "a number above 0" if above is not None else "a number from 0 up"
        raise SpecError(f"{where} {key} is {value!r}: it must be {rule}")
    return float(value)
