"""The trainer protocol of trials, which the data-parallel trainer and the pipeline trainer implement."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from autotune.profilers.ranges import Ranges
from autotune.profilers.timeline import Timeline
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.plan import Plan


class TrainedStep(Protocol):
    """One training step of one rank; time stamps are of the performance counter."""

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
    """One rank of a job that trains by a plan. Called by one thread, the same calls in the same order on all ranks."""

    plan: Plan
    rank_context: RankContext
    ranges: Ranges
    peak_memory_bytes: int

    def step(self) -> TrainedStep:
        """Train on the next global batch."""

    def metered_step(self) -> TrainedStep:
        """A step that also meters memory; not for scoring."""

    def barrier(self) -> None:
        """Wait for all ranks, with nothing in flight."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def record_collectives(self, *, on: bool) -> None:
        """Record the collectives of the following steps, or stop."""

    def whole_model(self) -> nn.Module:
        """The whole model with its present parameters; called by all ranks together."""

    def close(self, error: BaseException | None = None) -> None:
        """Release the process group; `error`: why, if this rank has failed."""
