"""Statistics of a window of 5 to 10 steps: the speeds of the network and the ranks, and where time is lost.

Input: the `StepStats` of every rank. A collective lasts until the last rank has joined, so an early rank's times include
its wait for the others. The network is therefore fitted to the rank with the least communication time of each step.
Steps that took more than twice the median are left out of the fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from autotune.online.priors import Priors
from autotune.profilers.step_stats import PartSums, StepStats
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan

FEWEST_STEPS = 1
_DISTURBED = 2.0
"""A step whose messages took this many times the median is left out of the fit."""
_SPREAD = 1e-9
"""Relative variance of message sizes below which the latency cannot be fitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """t = latency + bytes / bandwidth, of the collectives of the plan that ran."""

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
    """Share of its step time spent waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The statistics of a window."""

    plan: Plan
    """The plan of the steps."""
    priors: Priors
    num_steps: int
    step_s: float
    """Median over steps of the slowest rank's step time."""
    ranks: tuple[RankWindow, ...]
    network: Network | None
    """None if nothing was sent."""
    num_parts: float
    """Per step."""
    wire_bytes: float
    """Per step."""
    queue_s: float
    """Of a message, from ready to posted: it waits for other ranks, for credit, and for messages of higher priority."""
    flight_s: float
    """Of a message."""
    stalled_share: float
    """Share of the step time that the forward pass waits for parameters, mean over ranks."""

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
        """The ranks with samples; a rank without samples only waits."""
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
        """Seconds of network use per second of the slowest rank's compute time."""
        if self.network is None:
            return 0.0
        busy_s = self.wire_bytes / self.network.bytes_per_s + self.num_parts * self.network.latency_s
        return busy_s / self.compute_s


def window(observed: Sequence[StepStats], plan: Plan, priors: Priors) -> Window:
    """The statistics of steps under one plan; the order of `observed` does not matter."""
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
        priors=priors,
        num_steps=len(steps),
        step_s=median(max(entry.step_s for entry in entries) for entries in steps.values()),
        ranks=tuple(_rank_window(ranks[rank]) for rank in sorted(ranks)),
        network=fit_network([_least_delayed(entries) for entries in steps.values()], priors.message_s),
        num_parts=num_parts / len(observed),
        wire_bytes=sum(part.num_bytes for part in parts) / len(observed),
        queue_s=sum(part.queue_s for part in parts) / max(num_parts, 1),
        flight_s=sum(part.flight_s for part in parts) / max(num_parts, 1),
        stalled_share=fmean(entry.stalled_s / entry.step_s for entry in observed),
    )


def fit_network(steps: Sequence[PartSums], message_s: float | None = None) -> Network | None:
    """Latency and bandwidth from the sums of several steps, by least squares over the steps that were not disturbed.

    If message sizes do not differ, or the fitted line has a negative coefficient, the latency is `message_s`, or 0 if
    that is not known.
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
    """The sums of the rank that waited least for others."""
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
    """The 95th percentile; of few values the largest."""
    ordered = sorted(values)
    return ordered[min(math.ceil(0.95 * len(ordered)), len(ordered)) - 1]


def _by(observed: Sequence[StepStats], key: str) -> dict[int, list[StepStats]]:
    found: dict[int, list[StepStats]] = defaultdict(list)
    for entry in observed:
        found[getattr(entry, key)].append(entry)
    return found
