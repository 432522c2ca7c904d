"""The joint search space, declared once: which knobs there are, and how their values make a plan.

The split is searched as one tilt per rank: samples in proportion to reference · 2^tilt, where the reference is each
rank's speed as the default trial showed it. Every point of the space is a feasible split (sums, minimums and memory caps
hold by construction), tilt 0 is the proportional split, and random points are sensible ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.record import Role
from workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from workloads.serial import to_data
from workloads.split import Bounds, proportional

MAX_TILT = 0.5
MIN_BUCKET_LOG2 = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A plan that somebody wants measured."""

    plan: Plan
    role: Role = Role.SEARCH
    params: dict[str, Any] = field(default_factory=dict)
    """Its coordinates, where a search proposed it."""
    number: int | None = None
    """Its number in the search's own storage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One dimension: either named choices, or a range of numbers."""

    name: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All plans the search may propose for one workload on one mix."""

    global_batch: int
    limits: Bounds
    reference: tuple[float, ...]
    """Relative speed of each rank."""
    transports: tuple[str, ...]
    codecs: tuple[str, ...]
    max_bucket_log2: int

    def knobs(self) -> list[Knob]:
        tilts = [Knob(name=f"tilt.{rank}", low=-MAX_TILT, high=MAX_TILT) for rank in range(len(self.reference))]
        return [
            *(tilts if len(tilts) > 1 else []),
            Knob(name="bucket_log2", low=MIN_BUCKET_LOG2, high=self.max_bucket_log2, whole=True),
            Knob(name="codec", choices=self.codecs),
            Knob(name="transport", choices=self.transports),
        ]

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """The plan at a point of the space."""
        weights = [speed * 2 ** params.get(f"tilt.{rank}", 0.0) for rank, speed in enumerate(self.reference)]
        return Plan(
            batch=BatchPlan(samples=proportional(weights, self.global_batch, self.limits)),
            comm=CommPlan(transport=params["transport"], bucket_bytes=2 ** int(params["bucket_log2"])),
            compression=CompressionPlan(codec=params["codec"]),
        )

    def tilts(self, samples: Sequence[int]) -> dict[str, float]:
        """The coordinates of a split: exactly that split wherever the tilts reach it, else the nearest they do."""
        if len(samples) == 1:
            return {}
        counts = [max(count, 0.5) for count in samples]
        tilts = [math.log2(count / speed) for count, speed in zip(counts, self.reference, strict=True)]
        middle = (max(tilts) + min(tilts)) / 2
        return {f"tilt.{rank}": min(max(tilt - middle, -MAX_TILT), MAX_TILT) for rank, tilt in enumerate(tilts)}

    def point(self, plan: Plan) -> dict[str, Any]:
        """The coordinates of a plan."""
        return self.tilts(plan.batch.samples) | {
            "bucket_log2": plan.comm.bucket_bytes.bit_length() - 1,
            "codec": plan.compression.codec,
            "transport": plan.comm.transport,
        }

    def describe(self) -> dict[str, Any]:
        """What makes two spaces the same; the reference is measured and does not count."""
        described = {key: value for key, value in to_data(self).items() if key != "reference"}
        return described | {"max_tilt": MAX_TILT}


def max_bucket_log2(param_bytes: int) -> int:
    """The smallest bucket that holds every gradient: larger ones are the same plan."""
    return max(MIN_BUCKET_LOG2, math.ceil(math.log2(max(param_bytes, 1))))
