"""What a window of 5 to 10 steps shows: how fast the network and the ranks are, and where time is lost.

Made of the `StepStats` that every rank sends. A collective lasts until the last rank has joined, so a rank that is early
sees the others' lateness in its own seconds: of each step the rank that spent least on its parts is believed. Steps that
took more than twice the usual are left out of the fit, so that one disturbance does not bend it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from autotune.online.priors import Known
from autotune.profilers.step_stats import PartSums, StepStats
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan

FEWEST_STEPS = 1
_DISTURBED = 2.0
"""A step whose parts took so many times the usual says little about the network."""
_SPREAD = 1e-9
"""Sizes that differ by less tell nothing about the latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """t = latency + bytes / bandwidth, as collectives of the plan that ran saw it."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWindow:
    """One rank over the window."""

    samples: int
    compute_s: float
    forward_s: float
    forward_p95_s: float
    backward_s: float
    backward_p95_s: float
    wait_share: float
    """Of its steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The statistics of a window."""

    plan: Plan
    """By which the steps were made."""
    known: Known
    num_steps: int
    step_s: float
    """Median over the steps of the slowest rank's."""
    ranks: tuple[RankWindow, ...]
    network: Network | None
    """None where nothing was sent or noted."""
    num_parts: float
    """Per step."""
    wire_bytes: float
    """Per step."""
    queue_s: float
    """Of a part, from being ready to being posted: for other ranks, for credit, for its turn."""
    flight_s: float
    """Of a part."""
    stalled_share: float
    """Of the steps, the mean over ranks: waiting for parameters in the forward pass."""

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def transport(self) -> str:
        return self.plan.comm.transport

    @property
    def collective(self) -> str:
        return self.plan.comm.collective

    @property
    def computing(self) -> tuple[RankWindow, ...]:
        """The ranks that had anything to do: a rank without samples only waits."""
        return tuple(rank for rank in self.ranks if rank.compute_s > 0 and rank.samples > 0)

    @property
    def compute_s(self) -> float:
        """Of the slowest rank."""
        return max(rank.compute_s for rank in self.ranks)

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return sum(rank.samples for rank in self.ranks) / self.step_s

    @property
    def communication_ratio(self) -> float:
        """Seconds that the network is in use per second of the slowest rank's computing."""
        if self.network is None:
            return 0.0
        busy_s = self.wire_bytes / self.network.bytes_per_s + self.num_parts * self.network.latency_s
        return busy_s / self.compute_s


def window(observed: Sequence[StepStats], plan: Plan, known: Known) -> Window:
    """The statistics of the steps observed, all under one plan, in whatever order they came."""
    steps, ranks = _by(observed, "step"), _by(observed, "rank")
    num_ranks = len(plan.batch.samples)
    if len(steps) < FEWEST_STEPS or len(observed) != len(steps) * num_ranks or len(ranks) != num_ranks:
        raise SpecError(
            f"a window has {len(observed)} observations of {len(steps)} steps by {len(ranks)} ranks but the plan is for "
            f"{num_ranks} ranks: give one observation per step and rank, and at least one step"
        )
    parts = [step.parts for step in observed]
    num_parts = sum(part.num_parts for part in parts)
    return Window(
        plan=plan,
        known=known,
        num_steps=len(steps),
        step_s=median(max(entry.step_s for entry in entries) for entries in steps.values()),
        ranks=tuple(_rank_window(ranks[rank]) for rank in sorted(ranks)),
        network=fit_network([_least_delayed(entries) for entries in steps.values()], known.message_s),
        num_parts=num_parts / len(observed),
        wire_bytes=sum(part.num_bytes for part in parts) / len(observed),
        queue_s=sum(part.queue_s for part in parts) / max(num_parts, 1),
        flight_s=sum(part.flight_s for part in parts) / max(num_parts, 1),
        stalled_share=fmean(entry.stalled_s / entry.step_s for entry in observed),
    )


def fit_network(steps: Sequence[PartSums], message_s: float | None = None) -> Network | None:
    """Latency and bandwidth from the sums of several steps: least squares over the steps that were not disturbed.

    Where sizes do not differ, or the line would be below zero somewhere, its latency is `message_s`; not known, nothing.
    """
    usual_s = median(sums.service_s for sums in steps) if steps else 0.0
    total = PartSums()
    for sums in steps:
        if sums.service_s <= _DISTURBED * usual_s:
            total += sums
    if total.num_parts == 0 or total.service_s <= 0 or total.num_bytes <= 0:
        return None
    n, b, t = total.num_parts, total.num_bytes, total.service_s
    spread = n * total.square_bytes - b * b
    assumed_s = message_s if message_s is not None and n * message_s < t else 0.0
    assumed = Network(bytes_per_s=b / (t - n * assumed_s), latency_s=assumed_s)
    if spread <= _SPREAD * b * b:
        return assumed
    slope = (n * total.byte_seconds - b * t) / spread
    latency_s = (t - slope * b) / n
    return Network(bytes_per_s=1 / slope, latency_s=latency_s) if slope > 0 and latency_s >= 0 else assumed


def _least_delayed(entries: Sequence[StepStats]) -> PartSums:
    """Of the rank that waited least for others."""
    return min((entry.parts for entry in entries), key=lambda sums: sums.service_s)


def _rank_window(entries: Sequence[StepStats]) -> RankWindow:
    forward, backward = [entry.forward_s for entry in entries], [entry.backward_s for entry in entries]
    return RankWindow(
        samples=round(fmean(entry.samples for entry in entries)),
        compute_s=fmean(entry.compute_s for entry in entries),
        forward_s=fmean(forward),
        forward_p95_s=_p95(forward),
        backward_s=fmean(backward),
        backward_p95_s=_p95(backward),
        wait_share=sum(entry.wait_s for entry in entries) / sum(entry.step_s for entry in entries),
    )


def _p95(values: Sequence[float]) -> float:
    """The value that 95 in 100 do not pass; of few values the largest."""
    ordered = sorted(values)
    return ordered[min(math.ceil(0.95 * len(ordered)), len(ordered)) - 1]


def _by(observed: Sequence[StepStats], key: str) -> dict[int, list[StepStats]]:
    found: dict[int, list[StepStats]] = defaultdict(list)
    for entry in observed:
        found[getattr(entry, key)].append(entry)
    return found
