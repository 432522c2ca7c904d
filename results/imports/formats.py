"""The formats that `autotune import` reads. A reader is one module with a function `read(asked) -> Imported`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.results.imports.imported import Asked, Imported
from autotune.results.imports.metis import is_metis
from autotune.results.imports.table import read_source
from autotune.workloads.errors import SpecError, unknown_name

STEPS = "steps"
"""Read by `autotune.results.imports.step_rows`, and fitted by the simulator instead of copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format and its reader, which is imported when it is used."""

    text: str
    read_by: str
    """ "module:function"."""


FORMATS: dict[str, Format] = {}


def register(name: str, entry: Format) -> None:
    if name in FORMATS:
        raise SpecError(f"import format {name!r} is registered already: choose another name")
    FORMATS[name] = entry


register(
    "layers",
    Format(
        text="CSV or JSON rows of layer, tp, mbs, forward, backward, params, activation, memory",
        read_by="autotune.results.imports.layer_times:read",
    ),
)
register(
    "metis",
    Format(
        text="files DeviceType.A100_tp2_bs4.json with times and memory per layer",
        read_by="autotune.results.imports.metis:read",
    ),
)
register(
    "pipedream",
    Format(
        text="graph.txt: ops with forward and backward times, activation and parameter bytes",
        read_by="autotune.results.imports.pipedream:read",
    ),
)


register(
    STEPS,
    Format(
        text="CSV or JSON rows of placement, local_bsz, step_time, sync_time: links and overlap are fitted to them",
        read_by="autotune.calibrate.import_steps:read",
    ),
)


def detect(files: Sequence[Path]) -> str:
    """The format that the names and first lines of the files show."""
    if not files:
        raise SpecError("no file was given: name at least one")
    if all(is_metis(path) for path in files):
        return "metis"
    start = read_source(files[0])[:4096].lower()
    if "forward_compute_time=" in start:
        return "pipedream"
    if "step_time" in start or "placement" in start.partition("\n")[0]:
        return STEPS
    if any(word in start for word in ("forward", "fwd")) and any(word in start for word in ("layer", "tp", "mbs")):
        return "layers"
    raise SpecError(f"{str(files[0])!r} is of no format that is recognised: give --format, one of {', '.join(FORMATS)}")


def import_files(asked: Asked, format_name: str = "") -> Imported:
    """The files as a graph and a profile. `format_name`: empty, detect it."""
    chosen = format_name or detect(asked.files)
    if chosen not in FORMATS:
        raise unknown_name("import format", chosen, FORMATS)
    module, _, function = FORMATS[chosen].read_by.partition(":")
    read: Callable[[Asked], Imported] = getattr(importlib.import_module(module), function)
    return read(asked)
