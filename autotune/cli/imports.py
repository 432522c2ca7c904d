"""`autotune import`: files of other tools become a graph, a profile and, from measured steps, a cluster of ours."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.cli.offline import write
from autotune.results.imports.formats import import_files
from autotune.results.imports.imported import Asked, Imported
from autotune.results.store.store import write_json
from autotune.results.text.cluster_text import cluster_toml
from autotune.workloads.errors import SpecError
from autotune.workloads.files import replace_file, safe_name
from autotune.workloads.graphs.graph_file import check_graph_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is read, and where the files go."""

    asked: Asked
    format: str
    """Empty: detect it."""
    output: Path


def import_profile(request: Request, *, as_json: bool) -> int:
    """Read the files and write ours; show their names and what was assumed."""
    _check_output(request.output)
    found = import_files(request.asked, request.format)
    check_graph_file(found.graph, f"what {request.asked.files[0].name!r} describes")
    written = _write(found, request.output)
    if as_json:
        write({**written, "notes": list(found.notes)})
        return 0
    for kind, file in written.items():
        sys.stdout.write(f"{kind}: {file}\n")
    for note in found.notes:
        sys.stdout.write(f"assumed: {note}\n")
    cluster = written.get("cluster", f"CLUSTER.toml (with devices named {_devices(found)})")
    sys.stdout.write(
        f"predict: autotune simulate --workload {written['graph']} --profile {written['profile']} --cluster {cluster}\n"
    )
    return 0


def _devices(found: Imported) -> str:
    return ", ".join(repr(rank.device) for rank in found.profile.ranks)


def _check_output(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"--output {str(folder)!r}: {error.strerror}: name a folder that can be written") from error


def _write(found: Imported, folder: Path) -> dict[str, Any]:
    """The kinds of files with their paths."""
    stem = safe_name(found.graph.name)
    paths = {"graph": folder / f"{stem}.graph.json", "profile": folder / f"{stem}.profile.json"}
    try:
        write_json(paths["graph"], found.graph)
        write_json(paths["profile"], found.profile)
        if found.cluster is not None:
            paths["cluster"] = folder / f"{stem}.cluster.toml"
            replace_file(paths["cluster"], cluster_toml(found.cluster, found.notes))
    except OSError as error:
        raise SpecError(
            f"cannot write to {str(folder)!r}: {error.strerror}: name another folder with --output"
        ) from error
    return {kind: str(path) for kind, path in paths.items()}
