"""Read the series of any file that holds them: a study, a race, a report, a pytest-benchmark file, a file of runs.

Only names and times are read, so that files of other versions compare as well. Anything else, anything damaged and
anything empty is one message, never a crash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.results.judge.series import Runs, Series, in_blocks
from autotune.results.store.record import SCHEMA, current_name
from autotune.results.store.store import find_studies
from autotune.workloads.errors import SpecError, StoreError
from autotune.workloads.files import read_text
from autotune.workloads.serial import from_data

KINDS = (
    "a study's comparison.json, a race, what `autotune sweep --json` or `report --json` wrote, "
    "a pytest-benchmark file, or a file of runs"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison."""

    source: str
    """The file or the study, as the user named it."""
    series: tuple[Series, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """What it was measured with, as far as the source states it."""


def read_side(spec: str, results: Path) -> Side:
    """A file, the folder of a study, or the name of a study in the results folder."""
    path = Path(spec)
    if path.is_file():
        return _from_file(path, spec)
    if path.is_dir() and (path / "comparison.json").exists():
        return _from_file(path / "comparison.json", spec)
    is_study = len(path.parts) == 1 and any((results / spec).glob("*/study.json"))
    if not is_study and (path.suffix or len(path.parts) > 1 or path.is_dir()):
        raise StoreError(f"no file {spec!r} that can be compared: name {KINDS}; or a study in {str(results)!r}")
    return _from_study(spec, results)


def _from_study(name: str, results: Path) -> Side:
    found = [_from_file(path, name) for store in find_studies(results, name) if (path := _comparison(store.folder))]
    if not found:
        raise SpecError(f"study {name!r} has no comparison yet: let its sweep finish, by the same command")
    series = tuple(series for side in found for series in side.series)
    return Side(source=name, series=series, environment=found[0].environment)


def _comparison(folder: Path) -> Path | None:
    path = folder / "comparison.json"
    return path if path.exists() else None


def _from_file(path: Path, source: str) -> Side:
    data = _load(path)
    series = tuple(_series(data, path))
    if not series:
        raise StoreError(f"{str(path)!r} holds no measured times: make it again, or name another file")
    first = data[0] if isinstance(data, list) else data
    return Side(source=source, series=series, environment=_environment(first, path))


def _load(path: Path) -> Any:
    """The JSON of a file, of a version that we read."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {str(path)!r} ({error}): name {KINDS}") from error
    if not text.strip():
        raise StoreError(f"{str(path)!r} is empty: make it again, or name another file")
    try:
        data = json.loads(text)  # _series names the entry that is no finite number
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{str(path)!r} is no JSON, or cut short ({error}): make it again") from error
    if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
        raise StoreError(
            f"{str(path)!r} has schema {data['schema']!r} but this version reads {SCHEMA}: use the version that wrote it"
        )
    return data


def _series(data: Any, path: Path) -> Iterator[Series]:
    """The series of any kind of file, recognised by the keys that only that kind has."""
    where = str(path)
    match data:
        case {"contenders": list(rows)}:
            yield from _rounds(rows, _group_beside(path), where)
        case {"entrants": list(rows), "workload": {"name": str(workload)}, "cluster": {"name": str(cluster)}}:
            yield from _rounds(rows, f"{workload} on {cluster}", where)
        case (
            {"comparison": list(rows), "workload": str(workload), "cluster": str(cluster)}
            | {"contest": list(rows), "workload": str(workload), "cluster": str(cluster)}  # until version 0.1
        ):
            yield from _rounds(rows, f"{workload} on {cluster}", where)
        case {"benchmarks": list(rows), "machine_info": _}:
            yield from _benchmarks(rows, where)
        case {"runs": list(), "what": str()}:
            yield from _runs(from_data(Runs, data, where), where)
        case [_, *_] if all(
            isinstance(entry, dict) and ("comparison" in entry or "contest" in entry) for entry in data
        ):
            for entry in data:
                yield from _series(entry, path)
        case _:
            raise StoreError(f"{where!r} is none of the files that compare reads: name {KINDS}")


def _rounds(rows: Iterable[Any], group: str, where: str) -> Iterator[Series]:
    """Contenders with their rounds. Reports of older versions hold the median only: one round, enough for no verdict."""
    for row in rows:
        match row:
            case {"name": str(name), "rounds_s": list(times)}:
                if times:
                    yield Series(name=current_name(name), rounds_s=_times(times, f"{where}: {name}"), group=group)
            case {"name": str(name), "step_s": step_s}:
                yield Series(name=current_name(name), rounds_s=_times([step_s], f"{where}: {name}"), group=group)
            case _:
                raise StoreError(f"{where!r} has a contender without a name or without times: make it again")


def _benchmarks(rows: Iterable[Any], where: str) -> Iterator[Series]:
    for row in rows:
        match row:
            case {"fullname": str(name), "stats": {"data": list(times)}}:
                yield Series(name=name.rpartition("/")[2], rounds_s=in_blocks(_times(times, f"{where}: {name}")))
            case {"fullname": str(name), "stats": {"median": median_s}}:
                yield Series(name=name.rpartition("/")[2], rounds_s=_times([median_s], f"{where}: {name}"))
            case _:
                raise StoreError(f"{where!r} has a benchmark without a name or without times: make it again")


def _runs(kept: Runs, where: str) -> Iterator[Series]:
    for run in kept.runs:
        if not _times(list(run.steps_s), f"{where}: a run of {run.series!r}"):
            raise StoreError(f"{where!r} has a run of {run.series!r} without steps: make it again")
    yield from kept.series()


def _times(values: list[Any], where: str) -> tuple[float, ...]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise StoreError(f"{where} has the time {value!r}: times are seconds above zero; make the file again")
    return tuple(map(float, values))


def _group_beside(path: Path) -> str:
    """What a comparison is about stands in the study.json beside it, if it was left there."""
    match _about(path):
        case {"workload": {"name": str(workload)}, "cluster": {"name": str(cluster)}}:
            return f"{workload} on {cluster}"
    return ""


def _environment(data: Any, path: Path) -> dict[str, str]:
    for known in (data, _about(path)):
        match known:
            case {"environment": dict(facts)}:
                return {str(key): str(value) for key, value in facts.items()}
            case {"machine_info": {"python_version": str(version), "cpu": {"brand_raw": str(processor)}}}:
                return {"python": version, "processor": processor}
    return {}


def _about(path: Path) -> Any:
    beside = path.with_name("study.json")
    return _load(beside) if path.name == "comparison.json" and beside.exists() else None
