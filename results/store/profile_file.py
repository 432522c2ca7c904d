"""Profiles on disk: `<results>/profiles/<workload>@<cluster>-<fingerprint>.json`, read strictly. Files may be written manually.

A file that is cut short, empty, of another kind or schema, or whose numbers cannot be, is refused with one SpecError
that names the file, what is wrong and the remedy: a simulator with half a profile would be silently wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.results.store.fits import Fit
from autotune.results.store.profile import PROFILE_KIND, PROFILE_SCHEMA, Profile
from autotune.results.store.store import write_json
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.files import json_of, read_text, safe_name
from autotune.workloads.plan import CODECS
from autotune.workloads.serial import from_data

PROFILE_FOLDER = "profiles"
_AGAIN = "measure it again with `autotune profile` (with your --workload, --cluster and --ranks), or restore the file from a copy"
_FORMAT = "see the format in docs/files.md"
_PAIR = 2


def profile_path(results: Path, workload: str, cluster: str, fingerprint: str) -> Path:
    """Where the profile of that workload on that cluster is kept; another version of either has another fingerprint."""
    return results / PROFILE_FOLDER / f"{safe_name(workload)}@{safe_name(cluster)}-{fingerprint}.json"


def save_profile(results: Path, profile: Profile) -> Path:
    path = profile_path(results, profile.workload, profile.cluster, profile.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, profile)
    return path


def load_profile(path: Path) -> Profile:
    """A profile that was measured here or written manually."""
    where = f"profile {str(path)!r}"
    data = _read(path, where)
    if not isinstance(data, dict) or data.get("kind") != PROFILE_KIND:
        raise SpecError(f'{where} is not one: a profile is a table with "kind": "{PROFILE_KIND}"; {_FORMAT}')
    if data.get("schema") != PROFILE_SCHEMA:
        raise SpecError(
            f"{where} has schema {data.get('schema')!r} but this version reads {PROFILE_SCHEMA}: "
            "use the version that wrote it, or measure it again"
        )
    try:
        profile = from_data(Profile, data, where)
        complaint = next(_complaints(profile), None)
    except SpecError as error:
        raise SpecError(f"{error}; {_FORMAT}") from error
    except OverflowError as error:
        raise SpecError(f"{where}: {error}; {_FORMAT}") from error
    if complaint is not None:
        raise SpecError(f"{where}: {complaint}; {_FORMAT}")
    return profile


def _read(path: Path, where: str) -> Any:
    try:
        text = read_text(path)
    except OSError as error:
        raise SpecError(
            f"cannot read {where}: {error.strerror}: measure one with `autotune profile` (with your --workload, --cluster and --ranks)"
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{where} is not text ({error.reason} at byte {error.start}): {_AGAIN}") from error
    if not text.strip():
        raise SpecError(f"{where} is empty: {_AGAIN}")
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is cut short or damaged ({error}): {_AGAIN}; {_FORMAT}") from error


def _complaints(profile: Profile) -> Iterator[str]:
    """The rules that types alone do not state."""
    if [rank.rank for rank in profile.ranks] != list(range(max(len(profile.ranks), 1))):
        yield "it needs at least one rank, and its ranks must be numbered 0, 1, 2 … in order"
    for rank in profile.ranks:
        for what, names in (("op", [op.name for op in rank.ops]), ("codec", [one.name for one in rank.codecs])):
            if twice := next((name for name in names if names.count(name) > 1), None):
                yield f"rank {rank.rank} has {what} {twice!r} twice: name each once"
        for one in rank.sharded:
            if one.degree < 2 or [op.name for op in one.ops] != [op.name for op in rank.ops]:
                yield (
                    f"rank {rank.rank}: sharded times of degree {one.degree}: the degree is at least 2, and the ops are those of "
                    "the rank, in the same order"
                )
        for codec in rank.codecs:
            if codec.name not in CODECS:
                yield f"rank {rank.rank}: {unknown_name('codec', codec.name, CODECS)}"
    yield from _wrong_numbers(profile, "profile")


def _wrong_numbers(value: Any, place: str) -> Iterator[str]:
    """Every number that cannot be, and every range that is none."""
    if isinstance(value, Fit) and value.low > value.high:
        yield f"{place} is measured from {value.low} to {value.high}: low must not exceed high"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from _wrong_numbers(getattr(value, entry.name), f"{place}.{entry.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            if place.endswith(".points") and len(item) != _PAIR:
                yield f"{place}[{index}] has {len(item)} numbers: a point is a size and what was measured there"
            yield from _wrong_numbers(item, f"{place}[{index}]")
    elif isinstance(value, int | float) and not _can_be(value, place):
        yield f"{place} is {value}: it must be finite and {'above zero' if _divides(place) else 'not negative'}"


def _can_be(value: float, place: str) -> bool:
    if value == 0 and _divides(place):
        return False
    return math.isfinite(value) and (value >= 0 or place.endswith(".unattributed_s"))


def _divides(place: str) -> bool:
    """Bandwidths that a prediction divides by."""
    return place.endswith((".bytes_per_s", ".up_bytes_per_s", ".down_bytes_per_s"))
