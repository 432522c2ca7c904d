"""The joint search space: the knobs of a plan, composed, and how a point becomes a plan and a plan a point.

Sub-spaces stand beside each other: the split of the batch (`split_points`), the knobs of communication and compression
(`comm_knobs`, `compression_knobs`), plans with pipeline stages (`pipeline_points`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from itertools import product
from typing import Any

from autotune.results.store.record import Role
from autotune.space import comm_knobs, compression_knobs, rank_sets, split_points
from autotune.space.comm_knobs import CROSS_STEP, MIN_BUCKET_LOG2
from autotune.space.knob import KNOBS, Knob, Reset, Scope, Values, with_comm
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.space.rank_sets import ALL_RANKS, RankSets
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CODECS, COLLECTIVES, TRANSPORTS, BatchPlan, Plan, ReducerKind
from autotune.workloads.serial import to_data
from autotune.workloads.workload import PLAIN_LOOP, Loop

for _knob in (
    comm_knobs.SIZE,
    compression_knobs.CODEC,
    comm_knobs.TRANSPORT,
    comm_knobs.REDUCER,
    comm_knobs.CREDIT,
    comm_knobs.COLLECTIVE,
    compression_knobs.FACTORS,
    compression_knobs.COMPRESSED,
):
    KNOBS.register(_knob)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A plan to be measured."""

    plan: Plan
    role: Role = Role.SEARCH
    params: dict[str, Any] = field(default_factory=dict)
    """Its coordinates, where a search proposed it."""
    number: int | None = None
    """Its number in the search's own storage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space(Scope):
    """All plans that a search may propose for one workload on one cluster."""

    staged: StagedPlans = field(default=NO_STAGES, compare=False)
    """Plans with pipeline stages to choose from, besides those without."""
    rank_sets: RankSets = field(default=ALL_RANKS, compare=False)
    """Sets of ranks that a plan may use, besides all of them."""

    def among(self, ranks: Sequence[int]) -> Space:
        """The plans that use these ranks; the others are left out."""
        return replace(self, limits=rank_sets.among(self.limits, ranks), staged=NO_STAGES, rank_sets=ALL_RANKS)

    def coordinates(self) -> dict[str, Values]:
        """Every coordinate of a point, and what it may be."""
        knobs = {name: knob.values(self) for name, knob in KNOBS.items()}
        searched = {
            name: values for name, values in knobs.items() if KNOBS[name].is_always_searched or not values.is_fixed
        }
        stages = {name: Values(choices=choices) for name, choices in self.staged.choices.items()}
        sets = {rank_sets.NAME: Values(choices=self.rank_sets.choices)} if self.rank_sets.sets else {}
        return split_points.coordinates(self) | searched | stages | sets

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """The plan at a point of the space."""
        if (staged := self.staged.plan(params)) is not None:
            return staged
        chosen = self.rank_sets.by_name.get(params.get(rank_sets.NAME, rank_sets.ALL))
        scope = self if chosen is None else self.among(chosen)
        return self.with_knobs(split_points.samples_at(params, scope), params)

    def with_knobs(self, samples: tuple[int, ...], params: Mapping[str, Any]) -> Plan:
        """The plan with this split and these values of knobs; others have their plainest value.

        Where two knobs exclude each other, the transport gives way.
        """
        plan = Plan(batch=BatchPlan(samples=samples))
        for knob in in_writing_order():
            if knob.applies(plan):
                plan = knob.write(plan, params.get(knob.name, knob.values(self).first), self)
        return _with_messages(plan) if _needs_messages(plan) else plan

    def grid(self) -> Iterator[dict[str, Any]]:
        """Every choice of the knobs that are not the split."""
        values = {name: knob.values(self) for name, knob in KNOBS.items()}
        lists = [of.grid() if KNOBS[name].in_grid else (of.first,) for name, of in values.items()]
        return (dict(zip(values, chosen, strict=True)) for chosen in product(*lists))

    def split_point(self, samples: Sequence[int]) -> dict[str, float]:
        """The coordinates of a split."""
        used = [rank for rank, count in enumerate(samples) if count]
        return split_points.point_of(samples, self if len(used) == len(samples) else self.among(used))

    def point(self, plan: Plan) -> dict[str, Any]:
        """The coordinates of a plan; the plainest value where one means nothing for it."""
        there = self.coordinates()
        if plan.pipeline is not None:
            return {name: values.first for name, values in there.items()} | self.staged.point(plan)
        read = {
            name: knob.read(plan) if knob.applies(plan) else knob.values(self).first
            for name, knob in KNOBS.items()
            if name in there
        }
        if read.get("reducer") == CROSS_STEP and CROSS_STEP not in self.reducers:
            read["reducer"] = ReducerKind.SCHEDULED.value
        sets = {rank_sets.NAME: self.rank_sets.name(plan)} if self.rank_sets.sets else {}
        return self.split_point(plan.batch.samples) | read | self.staged.point(plan) | sets

    def holds(self, plan: Plan) -> bool:
        """Whether a plan lies in the space: its split within reach, its knobs at values that may be chosen."""
        return self.plan(self.point(plan)) == plan

    def reaches(self, samples: Sequence[int]) -> bool:
        """Whether a split lies in the space. Where kinds of ranks share a coordinate, every split of the space's bounds does: as it
        is, or rounded otherwise within a kind.
        """
        used = [rank for rank, count in enumerate(samples) if count]
        among_all = len(used) == len(samples)
        if not among_all and tuple(used) not in self.rank_sets.sets:
            return False
        scope = self if among_all else self.among(used)
        return bool(self.rank_kinds) or split_points.samples_at(self.split_point(samples), scope) == tuple(samples)

    def describe(self) -> dict[str, Any]:
        """What makes two spaces the same; the reference is measured and does not count."""
        plain = replace(self, factors_for=None, staged=NO_STAGES, rank_sets=ALL_RANKS)
        described: dict[str, Any] = to_data(plain)
        for name in ("reference", "factors_for", "staged", "rank_sets"):
            del described[name]
        if not self.rank_kinds:  # came later: a space without is the one that it was
            del described["rank_kinds"]
        described |= {rank_sets.NAME: list(self.rank_sets.choices)} if self.rank_sets.sets else {}
        described |= to_data(self.staged.choices)
        searched = {name: to_data(values) for name, values in self.coordinates().items() if name in KNOBS}
        return described | {
            "max_log_share": split_points.MAX_LOG_SHARE,
            "sends_factors": self.factors_for is not None,
            "knobs": searched,
        }


def in_writing_order() -> Iterator[Knob]:
    """Each knob after those that it reads."""
    order = TopologicalSorter({name: knob.after for name, knob in KNOBS.items()})
    return (KNOBS[name] for name in order.static_order())


def resets(best: Plan, default: Plan) -> list[Reset]:
    """The best plan with one knob at a time as the default has it; knobs that are so anyway are left out."""
    every = [split_points.reset(best, default), *(one for knob in KNOBS.values() for one in knob.resets(best, default))]
    return [one for one in every if one.plan != best]


def _needs_messages(plan: Plan) -> bool:
    codecs = any(CODECS[name].needs_messages for name in plan.compression.codecs)
    return COLLECTIVES[plan.comm.collective].needs_messages or bool(plan.compression.factors) or codecs


def _with_messages(plan: Plan) -> Plan:
    """On a transport that carries messages from rank to rank."""
    return plan if TRANSPORTS[plan.comm.transport].carries_shards else with_comm(plan, transport="gloo")


def kinds_of(graph: OpGraph) -> tuple[str, ...]:
    """Kinds of layers worth compressing alone; none where there is but one."""
    kinds = graph.main_kinds()
    return kinds if len(kinds) > 1 else ()


def configurations(
    num_ranks: int, transports: Sequence[str], loop: Loop = PLAIN_LOOP, cluster: Cluster | None = None
) -> dict[str, tuple[str, ...]]:
    """The reducers and collectives that a job of this size can choose from. Schedules run on CPUs only, so far. A loop that
    clips needs all gradients before each step, so that steps cannot overlap. Sums within hosts are for several hosts, some of
    which have several ranks.
    """
    if num_ranks < 2 or not any(TRANSPORTS[name].carries_shards for name in transports):
        return {"reducers": (ReducerKind.BUCKETED.value,), "collectives": ("ring",)}
    has_groups = cluster is not None and 1 < len(cluster.hosts) < len(cluster.devices)
    overlap = () if loop.clip_norm is not None else (CROSS_STEP,)
    return {
        "reducers": (ReducerKind.BUCKETED.value, *overlap, ReducerKind.SCHEDULED.value),
        "collectives": COLLECTIVES.names(lambda one: one.is_searched and (has_groups or not one.sums_in_hosts)),
    }


def max_bucket_log2(param_bytes: int) -> int:
    """The smallest bucket that holds every gradient: larger ones are the same plan."""
    return max(MIN_BUCKET_LOG2, math.ceil(math.log2(max(param_bytes, 1))))
