"""Measured data-parallel steps: rows of placement, samples per GPU, seconds of a step and of synchronising.

A placement has one digit per host, the GPUs used there: "1", "4", "22"; with other separators hosts of ten and more: "16+16".
Instead of it, `nodes` and `gpus` (all together) state hosts with equal numbers. Synchronising is what it adds to the step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.results.imports.table import TIMES, Column, Row, read_rows
from autotune.workloads.errors import SpecError

MOST_GPUS = 4096

_PLACEMENT = Column(names=("placement", "gpus_per_node", "layout"))
_HOSTS = Column(names=("num_nodes", "nodes", "hosts"))
_GPUS = Column(names=("num_replicas", "replicas", "gpus", "num_gpus", "world_size"))
_SAMPLES = Column(names=("local_bsz", "local_batch", "local_batch_size", "samples", "batch_size", "bs"))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One measured step."""

    placement: tuple[int, ...]
    """GPUs on each host."""
    samples: int
    """Of each GPU."""
    step_s: float
    sync_s: float | None = None

    @property
    def num_gpus(self) -> int:
        return sum(self.placement)

    @property
    def kind(self) -> str:
        """The kind of placement: what joins the GPUs."""
        if self.num_gpus == 1:
            return ONE_GPU
        if len(self.placement) == 1:
            return ONE_HOST
        return SEVERAL_HOSTS if max(self.placement) == 1 else SEVERAL_EACH


ONE_GPU, ONE_HOST, SEVERAL_HOSTS, SEVERAL_EACH = KINDS = (
    "one GPU",
    "one host, several GPUs",
    "several hosts, one GPU each",
    "several hosts, several GPUs each",
)


def read_steps(path: Path, *, time_unit: str = "s") -> list[StepRow]:
    """The rows of a file, in its order."""
    if time_unit not in TIMES:
        raise SpecError(f"--time-unit {time_unit!r}: it must be one of {', '.join(TIMES)}")
    units = tuple(TIMES.items())
    step = Column(names=("step_time", "step", "iter_time", "iteration_time"), units=units, default_unit=time_unit)
    sync = Column(names=("sync_time", "sync", "comm_time"), units=units, default_unit=time_unit)
    return [_row(row, step, sync) for row in read_rows(path)]


def _row(row: Row, step: Column, sync: Column) -> StepRow:
    seconds = row.number(step)
    if seconds == 0:
        raise SpecError(f"{row.where}: a step of 0 seconds cannot be: it must be above 0")
    return StepRow(
        placement=_placement(row),
        samples=row.count(_SAMPLES),
        step_s=seconds,
        sync_s=row.number(sync) if row.has(sync) else None,
    )


def _placement(row: Row) -> tuple[int, ...]:
    if row.has(_PLACEMENT):
        try:
            return parse_placement(row.text(_PLACEMENT))
        except SpecError as error:
            raise SpecError(f"{row.where}, column 'placement': {error}") from error
    hosts, gpus = row.count(_HOSTS), row.count(_GPUS)
    if gpus % hosts or gpus > MOST_GPUS:
        raise SpecError(
            f"{row.where}: {gpus} GPUs on {hosts} hosts: hosts must have equally many, at most {MOST_GPUS} in all"
        )
    return (gpus // hosts,) * hosts


def parse_placement(text: str) -> tuple[int, ...]:
    """GPUs on each host: "44" or "4+4"."""
    parts: Sequence[str] = re.split(r"[+x,;/ -]+", text.strip()) if not text.strip().isdigit() else list(text.strip())
    counts = tuple(int(part) for part in parts if part.isdigit())
    if not counts or len(counts) < len(parts) or min(counts) < 1 or sum(counts) > MOST_GPUS:
        raise SpecError(
            f"placement {text!r}: it must have one digit from 1 per host, or numbers joined by +, such as 16+16; at most "
            f"{MOST_GPUS} GPUs"
        )
    return counts
