"""What a user wants predicted, as the command line states it; needs neither torch nor numba."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.jobs.job import Job

OBJECTIVES = ("time", "cost", "energy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(Job):
    """`autotune simulate` and `autotune plan`."""

    num_ranks: int | None = None
    """Of a cluster that takes any number; None: as many as it has devices."""
    profiles: tuple[Path, ...] = ()
    what_if: tuple[str, ...] = ()
    plan: str | None = None
    """A file, "best", "default"; None: the kept best if there is one, else the default."""

    @property
    def plan_file(self) -> str | None:
        return self.plan if self.plan not in (None, "best", "default") else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """What `autotune plan` searches for."""

    objective: str = "time"
    min_throughput: float = 0.0
    method: str = "descent"
    any_plan: bool = False
    """Also what is predicted but not run by any job yet; else only where nothing else fits."""
    evaluations: int = 5_000
    placement: str = "off"
    """The method that searches plans with groups of ops; "off": none are searched, as in advice, which compares many clusters."""
    simulations: int = 200
    """Of plans with groups of ops."""
    explain: bool = False
    """Also what each decision of a placement is worth."""
