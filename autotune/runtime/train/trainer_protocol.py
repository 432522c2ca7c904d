"""What a trial needs of whoever trains: the data-parallel trainer and the pipeline's meet it alike."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from autotune.profilers.ranges import Ranges
from autotune.profilers.timeline import Timeline
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.plan import Plan


class TrainedStep(Protocol):
    """One training step of one rank; moments on the performance counter."""

    @property
    def begin_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def total_s(self) -> float: ...
    @property
    def compute_s(self) -> float: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def late_s(self) -> float: ...
    @property
    def loss_share(self) -> float: ...

    def timeline(self, rank: int) -> Timeline:
        """The step as spans, on the clock it was measured with."""


class TrainerProtocol(Protocol):
    """One rank of a job that trains as its plan says."""

    plan: Plan
    rank_context: RankContext
    ranges: Ranges
    peak_memory_bytes: int

    def step(self) -> TrainedStep:
        """Train on the next global batch."""

    def metered_step(self) -> TrainedStep:
        """A step that also meters memory; not for scoring."""

    def meet(self) -> None:
        """Wait until every rank is here, with nothing on its way."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def record_collectives(self, *, on: bool) -> None:
        """Have the exchanges of the steps that follow noted."""

    def whole_model(self) -> nn.Module:
        """The model as it is now, all of it; called by all ranks together."""

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the group."""
