"""Measured times under a name, whatever measured them, and the runs that are kept to be looked at again.

A `Series` is what comparisons work on: one time per round. A `Runs` file holds every step of every run, as the
experiment on false alarms and the comparison of two revisions write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from autotune.results.judge.stats import num_warmup
from autotune.results.store.record import SCHEMA

MOST_ROUNDS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One thing that was measured several times."""

    name: str
    rounds_s: tuple[float, ...]
    group: str = ""
    """What it is part of, such as "vgg on mixed4"; empty where the file does not state it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of a series: a trainer and a process group of its own."""

    series: str
    round_number: int
    steps_s: tuple[float, ...]
    """Every step after the trial's own warm-up: the slowest rank's time."""
    job: int = 0
    """Runs of one job share their processes."""
    cpu_s_per_step: float = 0.0
    """CPU seconds of all ranks."""
    load: float = 0.0
    """The machine's load average when the run began."""

    @property
    def step_s(self) -> float:
        return steady_step_s(self.steps_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """Runs that were made together."""

    what: str
    label: str
    """How the figures came about: "emulated", "lab", "measured on this machine"."""
    runs: tuple[Run, ...]
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    created_at: str = ""
    schema: int = SCHEMA

    def series(self) -> tuple[Series, ...]:
        """One series for each name, in the order of their first runs; a run counts with its steady step."""
        names = dict.fromkeys(run.series for run in self.runs)
        return tuple(
            Series(name=name, rounds_s=tuple(run.step_s for run in self.runs if run.series == name), group=self.what)
            for name in names
        )


def steady_step_s(steps_s: Sequence[float]) -> float:
    """The median step once warm-up is over."""
    return median(steps_s[num_warmup(steps_s) :])


def in_blocks(times_s: Sequence[float], most: int = MOST_ROUNDS) -> tuple[float, ...]:
    """Thousands of repetitions in a row as the medians of at most that many consecutive blocks.

    Neighbours share the machine's mood: counted one by one they would claim a certainty that they do not have.
    """
    if len(times_s) <= most:
        return tuple(times_s)
    edges = [round(index * len(times_s) / most) for index in range(most + 1)]
    return tuple(median(times_s[begin:end]) for begin, end in pairwise(edges))
