"""What a reader makes of another tool's files: a graph and a profile of ours, with notes on what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.profilers.fit import Point, fit_line
from autotune.results.store.fits import Source, WorkFit
from autotune.results.store.profile import Profile
from autotune.workloads.cluster import Cluster
from autotune.workloads.graphs.graph_file import GraphFile

LABEL = "external"
HOST = "elsewhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the user says of the files; None and empty: not stated."""

    files: tuple[Path, ...]
    name: str = ""
    """Of the model. Empty: that of the file."""
    device: str = ""
    """The device that it was measured on, as cluster files will name it."""
    global_batch: int | None = None
    samples: int | None = None
    """Samples of one pass, where the file does not say."""
    time_unit: str = ""
    keys: tuple[str, ...] = ()
    """Columns that the keys of nested tables are."""
    placement: str = ""
    """Of measured steps: the placement that the cluster file is for. Empty: the largest that was measured."""
    param_bytes: float | None = None
    """Of measured steps: bytes of the gradients."""

    @property
    def model(self) -> str:
        return self.name or self.files[0].name.partition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A graph and a profile that name their ops alike."""

    graph: GraphFile
    profile: Profile
    cluster: Cluster | None = None
    """Where the files say something of links."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def imported_fit(points: Sequence[Point]) -> WorkFit:
    """A line through (samples, seconds); one point gives a line through zero."""
    line, measured = fit_line(points), [x for x, _ in points]
    return WorkFit(
        source=Source.IMPORTED,
        low=min(measured),
        high=max(measured),
        worst_error=line.worst_error,
        fixed_s=line.fixed,
        per_sample_s=line.slope,
        points=tuple(sorted(points)),
    )
