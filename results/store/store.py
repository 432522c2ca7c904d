"""Where a study lives: one folder, append-only records, atomic files, one writer at a time.

    <results>/<study>/<cluster>/study.json         what the study is about
                                records.jsonl      one line per finished trial, written once, never changed
                                attempt.json       the trial that is being measured
                                comparison.json    the interleaved comparison that ended the sweep
                                search.db          Optuna's own storage; rebuilt from the records if lost
                                timelines/         spans of one step of the fastest and slowest trials
    <results>/best/<workload>@<cluster>.json       the plan to reuse

A line is on disk before anything else uses the trial, so a killed job loses at most the trial it was measuring. A torn last
line, the only damage a kill can do, is cut off by the next writer and ignored by readers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from autotune.profilers.timeline import Timeline
from autotune.results.store.command_line import first_sweep
from autotune.results.store.record import SCHEMA, Attempt, Comparison, StudyInfo, TrialRecord, current_name
from autotune.workloads.errors import SpecError, StoreError
from autotune.workloads.files import PARTIAL, json_of, read_text, replace_file, sync_folder
from autotune.workloads.plan import Plan
from autotune.workloads.serial import from_data, to_data

T = TypeVar("T")
TRACES_BYTES = 16 * 2**20
"""What the traces of one study may take together."""
_DAMAGE = (ValueError, OverflowError, RecursionError)
"""What reading JSON raises that is cut short, has a number too large, or is nested beyond reason."""
_PAIR = 2


class StudyStore:
    """One study's folder. Any process may read; `open_for_writing` first to write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_fd: int | None = None

    @property
    def search_db(self) -> Path:
        return self.folder / "search.db"

    def exists(self) -> bool:
        return (self.folder / "study.json").exists()

    def open_for_writing(self) -> None:
        """Take the study's lock, held until this process ends, and cut off a torn last line."""
        _refuse_links(self.folder)
        writable_folder(self.folder)
        self._lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"study {str(self.folder)!r} is being written by another job: wait for it, or use --study NAME"
            ) from error
        for partial in self.folder.rglob(f".*{PARTIAL}"):
            partial.unlink()
        path = self.folder / "records.jsonl"
        if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)
                os.fsync(file.fileno())

    def close(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def info(self) -> StudyInfo:
        return read_json(StudyInfo, self.folder / "study.json")

    def write_info(self, info: StudyInfo) -> None:
        write_json(self.folder / "study.json", info)

    def records(self) -> list[TrialRecord]:
        """Every finished trial, in the order they finished."""
        path = self.folder / "records.jsonl"
        if not path.exists():
            return []
        records = []
        for number, line in enumerate(_complete_lines(path), start=1):
            where = f"{path}, line {number}"
            try:
                records.append(from_data(TrialRecord, _current(json_of(line), where), where))
            except StoreError:
                raise
            except (*_DAMAGE, SpecError) as error:
                raise StoreError(
                    f"{where} is damaged ({error}): restore it from a copy, or move the folder away to start anew"
                ) from error
        return records

    def begin(self, plan: Plan) -> int:
        """Note that this plan is about to be measured. Returns how many jobs have ended while they measured it."""
        path, fingerprint = self.folder / "attempt.json", plan.fingerprint()
        last = read_json(Attempt, path) if path.exists() else None
        ended = last.times if last is not None and last.plan == fingerprint else 0
        write_json(path, Attempt(plan=fingerprint, times=ended + 1))
        return ended

    def append(self, record: TrialRecord) -> None:
        """Write one record; it is on disk when this returns, and no trial is being measured."""
        line = json.dumps(to_data(record), separators=(",", ":")) + "\n"
        path = self.folder / "records.jsonl"
        try:
            is_new = not path.exists()
            with path.open("ab", buffering=0) as file:
                _append(file, line.encode())
            if is_new:
                sync_folder(self.folder)
        except OSError as error:
            raise cannot_write(path, error) from error
        (self.folder / "attempt.json").unlink(missing_ok=True)

    def comparison(self) -> Comparison | None:
        """With the names that this version gives to contenders, whichever version wrote it."""
        path = self.folder / "comparison.json"
        if not path.exists():
            return None
        kept = read_json(Comparison, path)
        return replace(kept, contenders=tuple(replace(one, name=current_name(one.name)) for one in kept.contenders))

    def write_comparison(self, comparison: Comparison) -> None:
        write_json(self.folder / "comparison.json", comparison)

    def write_timeline(self, number: int, timeline: Timeline) -> None:
        (self.folder / "timelines").mkdir(exist_ok=True)
        write_json(self._timeline(number), timeline)

    def timeline(self, number: int) -> Timeline:
        """The traced step of a trial, if it is among those kept."""
        path = self._timeline(number)
        if not path.exists():
            kept = ", ".join(map(str, self.traced()))
            remedy = f"name one of {kept}" if kept else "no trial of this study has one"
            raise SpecError(f"no trace of trial {number} is kept: {remedy}")
        return _checked(read_json(Timeline, path), path)

    def traced(self) -> list[int]:
        """The trials whose traced step is kept."""
        return sorted(int(path.stem) for path in (self.folder / "timelines").glob("[0-9]*.json"))

    def write_plan_timeline(self, plan: Plan, timeline: Timeline) -> None:
        """Of a plan that was compared without having been a trial."""
        (self.folder / "timelines").mkdir(exist_ok=True)
        write_json(self._plan_timeline(plan), timeline)

    def plan_timeline(self, plan: Plan) -> Timeline | None:
        path = self._plan_timeline(plan)
        return _checked(read_json(Timeline, path), path) if path.exists() else None

    def _plan_timeline(self, plan: Plan) -> Path:
        return self.folder / "timelines" / f"plan-{plan.fingerprint()}.json"

    def keep_timelines(self, numbers: Sequence[int], limit_bytes: int = TRACES_BYTES) -> None:
        """Remove all others, and of these, from the last on, what goes beyond the limit."""
        total = 0
        wanted = [self._timeline(number) for number in numbers]
        for path in wanted:
            total += path.stat().st_size if path.exists() else 0
            if total > limit_bytes:
                path.unlink(missing_ok=True)
        for path in (self.folder / "timelines").glob("[0-9]*.json"):
            if path not in wanted:
                path.unlink()

    def _timeline(self, number: int) -> Path:
        return self.folder / "timelines" / f"{number:04d}.json"


def _refuse_links(folder: Path) -> None:
    """A folder that was received may hold links to files of its reader, which writing and cutting off would change."""
    for path in (folder.parent, folder, *(folder.iterdir() if folder.is_dir() else ())):
        if path.is_symlink():
            raise StoreError(
                f"{str(path)!r} is a symbolic link: results are written to folders and files of their own only: copy it with "
                "`cp -rL`, or name another --study"
            )


def _append(file: FileIO, line: bytes) -> None:
    """The whole line, or nothing."""
    before = os.fstat(file.fileno()).st_size
    try:
        left = memoryview(line)
        while left:
            left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(before)
        raise


def _checked(timeline: Timeline, path: Path) -> Timeline:
    points = [point for counter in timeline.counters for point in counter.points]
    if not timeline.spans or any(len(point) != _PAIR for point in points):
        raise StoreError(
            f"{str(path)!r} is damaged (no spans, or a point that is no pair): name another with --trial N"
        )
    return timeline


def find_studies(results: Path, name: str | None = None) -> list[StudyStore]:
    """The studies of that name, one per cluster; without a name, those of the study that was written to last."""
    stores = [StudyStore(path.parent) for path in sorted(results.glob("*/*/study.json"))]
    if not stores:
        raise SpecError(
            f"no study in {str(results)!r}: run `{first_sweep(results)}` first, or name another folder with --results"
        )
    if name is None:
        name = max(stores, key=lambda store: _last_change(store.folder)).folder.parent.name
    chosen = [store for store in stores if store.folder.parent.name == name]
    if not chosen:
        known = sorted({store.folder.parent.name for store in stores})
        raise SpecError(f"no study called {name!r} in {str(results)!r}: known: {', '.join(known)}")
    return chosen


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.iterdir() if path.is_file())


def writable_folder(folder: Path) -> None:
    """Make the folder, and make sure that it can be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"cannot write results to {str(folder)!r}: {reason}: name another folder with --results or $AUTOTUNE_RESULTS"
        ) from error


def read_json(kind: type[T], path: Path) -> T:
    """A value written by `write_json`."""
    try:
        data = json_of(read_text(path))
        return from_data(kind, _current(data, str(path)), str(path))
    except OSError as error:
        raise StoreError(
            f"cannot read {str(path)!r}: {error.strerror}: make it a file that you may read, or name another"
        ) from error
    except _DAMAGE as error:
        raise StoreError(
            f"{str(path)!r} is damaged ({error}): restore it from a copy, or move the folder away to start anew"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Replace a file in one step: readers see the old content or the new, never half."""
    text = json.dumps(to_data(value), indent=1) + "\n"
    try:
        replace_file(path, text)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Disk full, quota, read-only, a fault of the device: what was written before is whole."""
    return StoreError(
        f"cannot write {str(path)!r}: {error.strerror or error}: make room or name another folder with --results; what was "
        "measured before is kept, and the same command goes on from there"
    )


def _complete_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")
    return lines[:-1]


def _current(data: Any, where: str) -> Any:
    if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
        raise StoreError(
            f"{where} has schema {data.get('schema')} but this version reads {SCHEMA}: use the version that wrote it"
        )
    return data
