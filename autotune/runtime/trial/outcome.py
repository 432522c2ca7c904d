"""What one rank reports of a trial: its measured steps, or the fault that ended the trial."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from autotune.profilers.timeline import Timeline
from autotune.results.store.record import RankResult
from autotune.runtime.errors import PeerLostError
from autotune.runtime.train.trainer_protocol import TrainedStep, TrainerProtocol
from autotune.runtime.trial.device_memory import is_out_of_memory
from autotune.workloads.errors import InfeasiblePlanError, LossNotFiniteError, TrialTimeoutError

_MOST_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What ended a trial early on one rank."""

    kind: str
    """"own": the cause lies on this rank; "peer": another rank had left; "memory"; "time"."""
    message: str
    at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """One rank's report of a trial."""

    fault: Fault | None = None
    steps_s: tuple[float, ...] = ()
    result: RankResult | None = None
    timeline: Timeline = field(default_factory=Timeline)
    loss_shares: tuple[float, ...] = ()
    """This rank's part of each step's loss; the sum over ranks is the loss of the whole batch."""
    accuracy: float | None = None
    cosine: float | None = None
    """Of a codec: the cosine between the parameter updates with and without it."""


def outcome_of(trainer: TrainerProtocol, steps: Sequence[TrainedStep], cpu_s: float) -> RankOutcome:
    """The outcome of these steps. `cpu_s`: CPU time per step."""
    context = trainer.rank_context
    result = RankResult(
        rank=context.rank,
        device=context.device.name,
        samples=trainer.plan.batch.samples[context.rank],
        compute_s=median(step.compute_s for step in steps),
        wait_s=median(step.wait_s for step in steps),
        cpu_s=cpu_s,
        peak_memory_bytes=trainer.peak_memory_bytes,
        late_s=median(step.late_s for step in steps),
    )
    return RankOutcome(
        steps_s=tuple(step.total_s for step in steps),
        result=result,
        loss_shares=tuple(step.loss_share for step in steps),
    )


def fault_of(error: Exception) -> Fault:
    """The fault that an exception stands for."""
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, InfeasiblePlanError):
        kind, text = "memory", str(error)
    elif is_out_of_memory(error):
        kind = "memory"
    elif isinstance(error, TrialTimeoutError):
        kind, text = "time", str(error)
    elif isinstance(error, LossNotFiniteError):
        kind, text = "own", str(error)
    elif isinstance(error, PeerLostError) or "gloo" in text or "PeerLostError" in text:
        kind = "peer"
    else:
        kind = "own"
    return Fault(kind=kind, message=text.splitlines()[0][:_MOST_CHARACTERS], at_s=time.monotonic())


def check_finite(loss: float, step: int) -> None:
    """Raise LossNotFiniteError where training has diverged."""
    if not math.isfinite(loss):
        raise LossNotFiniteError(loss, step)
