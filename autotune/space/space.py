"""The joint search space, declared once: which knobs there are, and how their values make a plan.

The split is searched as one tilt per rank: samples in proportion to reference · 2^tilt, where the reference is each
rank's speed as the default trial showed it. Every point of the space is a feasible split (sums, minimums and memory caps
hold by construction), tilt 0 is the proportional split, and random points are sensible ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from autotune.results.store.record import Role
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import (
    LOSSLESS_CODECS,
    MESSAGE_CODECS,
    ONE_ROUND_CODECS,
    BatchPlan,
    CommPlan,
    CompressionPlan,
    KindCodec,
    Plan,
)
from autotune.workloads.serial import to_data
from autotune.workloads.split import Bounds, proportional
from autotune.workloads.workload import PLAIN_LOOP, Loop

MAX_LOG_SHARE = 0.5
CREDITS = ("4 parts", "1 parts", "2 parts", "8 parts", "16 parts")
"""Of a schedule: what may be under way, in partitions."""
MIN_BUCKET_LOG2 = 16
ALL_LAYERS = "all"
"""Of the knob "compressed", which else names the one kind of layers that goes by the codec."""


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
    reducers: tuple[str, ...] = ("bucketed",)
    """"bucketed", "scheduled" with a barrier, or "crossing": scheduled, and the next step begins before all has arrived."""
    collectives: tuple[str, ...] = ("ring",)
    factors_for: Callable[[tuple[int, ...]], tuple[str, ...]] | None = field(default=None, compare=False)
    """The layers that may send factors under a split, if any do."""
    kinds: tuple[str, ...] = ()
    """Kinds of layers that a schedule may compress alone, where lossy codecs are allowed."""
    staged: StagedPlans = field(default=NO_STAGES, compare=False)
    """Plans with pipeline stages to choose from, besides those without."""

    def knobs(self) -> list[Knob]:
        log_shares = [
            Knob(name=f"tilt.{rank}", low=-MAX_LOG_SHARE, high=MAX_LOG_SHARE) for rank in range(len(self.reference))
        ]
        return [
            *(log_shares if len(log_shares) > 1 else []),
            Knob(name="bucket_log2", low=MIN_BUCKET_LOG2, high=self.max_bucket_log2, whole=True),
            Knob(name="codec", choices=self.codecs),
            Knob(name="transport", choices=self.transports),
            *(Knob(name=name, choices=choices) for name, choices in self._optional() if len(choices) > 1),
            *(Knob(name=name, choices=choices) for name, choices in self.staged.choices.items()),
        ]

    def _optional(self) -> list[tuple[str, tuple[str, ...]]]:
        scheduled = self.reducers != ("bucketed",)
        kinds = self.kinds if scheduled and not set(self.codecs) <= set(LOSSLESS_CODECS) else ()
        return [
            ("reducer", self.reducers),
            ("credit", CREDITS if scheduled else CREDITS[:1]),
            ("collective", self.collectives),
            ("factors", ("no", "yes") if scheduled and self.factors_for is not None else ("no",)),
            ("compressed", (ALL_LAYERS, *kinds)),
        ]

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """The plan at a point of the space. What two knobs forbid each other is put right: the transport and the reducer
        that a codec, a collective or factors need, the schedule and cut that there are for so many stages.
        """
        if (staged := self.staged.plan(params)) is not None:
            return staged
        weights = [speed * 2 ** params.get(f"tilt.{rank}", 0.0) for rank, speed in enumerate(self.reference)]
        chosen = Knobs(
            bucket_log2=int(params["bucket_log2"]),
            codec=params["codec"],
            transport=params["transport"],
            **{name: params.get(name, choices[0]) for name, choices in self._optional()},
        )
        return self.with_knobs(proportional(weights, self.global_batch, self.limits), chosen)

    def with_knobs(self, samples: tuple[int, ...], knobs: Knobs) -> Plan:
        """The plan with this split and these knobs."""
        comm = _comm(knobs)
        factors: tuple[str, ...] = ()
        if comm.reducer == "scheduled" and knobs.factors == "yes" and self.factors_for is not None:
            factors = self.factors_for(samples)
        codec = knobs.codec if comm.reducer == "scheduled" or knobs.codec in ONE_ROUND_CODECS else "fp16"
        if comm.collective != "ring" or factors or codec in MESSAGE_CODECS:
            comm = replace(comm, transport="gloo")
        return Plan(
            batch=BatchPlan(samples=samples),
            comm=comm,
            compression=_compression(codec, knobs.compressed if comm.reducer == "scheduled" else ALL_LAYERS, factors),
        )

    def all_knobs(self) -> list[Knobs]:
        """Every choice of the knobs that are not the split, with a middling credit."""
        optional = dict(self._optional()) | {"credit": CREDITS[:1]}
        return [
            Knobs(bucket_log2=bucket_log2, codec=codec, transport=transport, **dict(zip(optional, chosen, strict=True)))
            for bucket_log2 in range(MIN_BUCKET_LOG2, self.max_bucket_log2 + 1)
            for transport, codec, *chosen in product(self.transports, self.codecs, *optional.values())
        ]

    def log_shares(self, samples: Sequence[int]) -> dict[str, float]:
        """The coordinates of a split: exactly that split wherever the tilts reach it, else the nearest they do."""
        if len(samples) == 1:
            return {}
        counts = [max(count, 0.5) for count in samples]
        log_shares = [math.log2(count / speed) for count, speed in zip(counts, self.reference, strict=True)]
        middle = (max(log_shares) + min(log_shares)) / 2
        return {
            f"tilt.{rank}": min(max(log_share - middle, -MAX_LOG_SHARE), MAX_LOG_SHARE)
            for rank, log_share in enumerate(log_shares)
        }

    def point(self, plan: Plan) -> dict[str, Any]:
        """The coordinates of a plan."""
        if plan.pipeline is not None:
            return self._anywhere() | self.staged.point(plan)
        comm = plan.comm
        size = comm.partition_bytes if comm.reducer == "scheduled" else comm.bucket_bytes
        crosses = comm.reducer == "scheduled" and comm.crosses_steps and "crossing" in self.reducers
        optional = {
            "reducer": "crossing" if crosses else comm.reducer,
            "credit": f"{max(comm.credit_bytes // comm.partition_bytes, 1)} parts"
            if comm.reducer == "scheduled"
            else CREDITS[0],
            "collective": comm.collective,
            "factors": "yes" if plan.compression.factors else "no",
            "compressed": plan.compression.by_kind[0].kind if plan.compression.by_kind else ALL_LAYERS,
        }
        offered = {name for name, choices in self._optional() if len(choices) > 1}
        return self.log_shares(plan.batch.samples) | {
            "bucket_log2": size.bit_length() - 1,
            "codec": plan.compression.codecs[-1],
            "transport": comm.transport,
            **{name: value for name, value in optional.items() if name in offered},
            **self.staged.point(plan),
        }

    def _anywhere(self) -> dict[str, Any]:
        """Some point: what a plan with stages has for coordinates that mean nothing to it."""
        knobs = [knob for knob in self.knobs() if knob.name not in self.staged.choices]
        return {knob.name: knob.choices[0] if knob.choices else int(knob.high) if knob.whole else 0.0 for knob in knobs}

    def describe(self) -> dict[str, Any]:
        """What makes two spaces the same; the reference is measured and does not count."""
        described: dict[str, Any] = to_data(replace(self, factors_for=None, staged=NO_STAGES))
        for name in ("reference", "factors_for", "staged"):
            del described[name]
        described |= to_data(self.staged.choices)
        return described | {"max_tilt": MAX_LOG_SHARE, "sends_factors": self.factors_for is not None}


def kinds_of(graph: OpGraph) -> tuple[str, ...]:
    """Kinds of layers worth compressing alone; none where there is but one."""
    kinds = graph.main_kinds()
    return kinds if len(kinds) > 1 else ()


def joint_space(  # noqa: PLR0913 - one field each
    *,
    global_batch: int,
    limits: Bounds,
    reference: tuple[float, ...],
    transports: tuple[str, ...],
    codecs: tuple[str, ...],
    param_bytes: int,
    graph: OpGraph | None = None,
    factors_for: Callable[[tuple[int, ...]], tuple[str, ...]] | None = None,
    loop: Loop = PLAIN_LOOP,
    staged: StagedPlans = NO_STAGES,
) -> Space:
    """The space of a job: the one place where it follows from the job what may be chosen."""
    return Space(
        global_batch=global_batch,
        limits=limits,
        reference=reference,
        transports=transports,
        codecs=codecs,
        max_bucket_log2=max_bucket_log2(param_bytes),
        factors_for=factors_for,
        kinds=kinds_of(graph) if graph is not None else (),
        staged=staged,
        **ways_to_send(len(reference), transports, loop),
    )


def ways_to_send(num_ranks: int, transports: Sequence[str], loop: Loop = PLAIN_LOOP) -> dict[str, tuple[str, ...]]:
    """The reducers and collectives that a job of this size can choose from. Schedules run on processors only, so far. A loop that
    clips needs all gradients before each step, so that steps cannot cross.
    """
    if num_ranks < 2 or "gloo" not in transports:
        return {"reducers": ("bucketed",), "collectives": ("ring",)}
    crossing = () if loop.clip_norm is not None else ("crossing",)
    return {"reducers": ("bucketed", *crossing, "scheduled"), "collectives": ("ring", "shards")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """A choice of everything but the split."""

    bucket_log2: int
    codec: str
    transport: str
    reducer: str = "bucketed"
    credit: str = "4 parts"
    collective: str = "ring"
    factors: str = "no"
    compressed: str = ALL_LAYERS


def _compression(codec: str, compressed: str, factors: tuple[str, ...]) -> CompressionPlan:
    """The codec for all layers, or for one kind of them."""
    if compressed == ALL_LAYERS or codec in LOSSLESS_CODECS:
        return CompressionPlan(codec=codec, factors=factors)
    return CompressionPlan(by_kind=(KindCodec(kind=compressed, codec=codec),), factors=factors)


def _comm(knobs: Knobs) -> CommPlan:
    if knobs.reducer == "bucketed":
        return CommPlan(transport=knobs.transport, bucket_bytes=2**knobs.bucket_log2, collective=knobs.collective)
    partition_bytes = 2**knobs.bucket_log2
    return CommPlan(
        reducer="scheduled",
        transport=knobs.transport,
        collective=knobs.collective,
        partition_bytes=partition_bytes,
        credit_bytes=int(knobs.credit.split()[0]) * partition_bytes,
        crosses_steps=knobs.reducer == "crossing",
    )


def max_bucket_log2(param_bytes: int) -> int:
    """The smallest bucket that holds every gradient: larger ones are the same plan."""
    return max(MIN_BUCKET_LOG2, math.ceil(math.log2(max(param_bytes, 1))))
