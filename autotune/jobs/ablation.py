"""The comparison that ends a sweep: plans in turn within one job, so that what disturbs the machine disturbs all.

The default takes part twice, which shows the noise. DDP tuned by hand is the peer to beat. The
best plan also runs with one knob at a time put back to the default: what it loses is what the knob was worth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.results.judge.selection import fastest
from autotune.results.store.record import AGAIN, BEST, DDP_DEFAULT, DDP_TUNED, Contender, Role, TrialRecord
from autotune.runtime.trial.workers import Measurement
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CommPlan, PipelinePlan, Plan
from autotune.workloads.quantity import format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan to compare, and the knob it puts back, if that is what it is for."""

    name: str
    plan: Plan
    reverts: str = ""


def entries(records: Sequence[TrialRecord], best: Plan) -> list[Entry]:
    """Who is compared with whom, in order."""
    default, peer = fastest(records, Role.DEFAULT), fastest(records, Role.PEER)
    chosen = []
    if default is not None:
        chosen.append(Entry(name=DDP_DEFAULT, plan=default.plan))
    if peer is not None:
        chosen.append(Entry(name=DDP_TUNED, plan=peer.plan))
    chosen.append(Entry(name=BEST, plan=best))
    if default is not None:
        chosen += reverted(best, default.plan)
        chosen.append(Entry(name=DDP_DEFAULT + AGAIN, plan=default.plan))
    return chosen


def reverted(best: Plan, default: Plan) -> list[Entry]:
    """The best plan with one knob at a time as in the default; knobs that are so anyway are left out."""
    if best.pipeline is not None:
        return _reverted_stages(best, best.pipeline)
    comm, compression = best.comm, best.compression
    is_scheduled = comm.reducer == "scheduled"
    size = {"partition_bytes" if is_scheduled else "bucket_bytes": default.comm.bucket_bytes}
    plain_codec = dataclasses.replace(compression, codec=default.compression.codec, by_kind=())
    changed = [
        ("batch split", "even split", dataclasses.replace(best, batch=default.batch)),
        (
            "partition size" if is_scheduled else "bucket size",
            f"{format_bytes(default.comm.bucket_bytes)} {'partitions' if is_scheduled else 'buckets'}",
            _with_comm(best, **size),
        ),
        ("crossing", "a barrier every step", _with_comm(best, crosses_steps=False)),
        ("factors", "no factors", dataclasses.replace(best, compression=dataclasses.replace(compression, factors=()))),
        ("codec", f"codec {default.compression.codec}", dataclasses.replace(best, compression=plain_codec)),
        ("collective", "a ring", _with_comm(best, collective="ring", servers=(), shares=())),
        ("reducer", "plain buckets" if is_scheduled else "DDP reducer", _plainer(best)),
        ("transport", f"over {default.comm.transport}", _with_comm(best, transport=default.comm.transport)),
    ]
    return [
        Entry(name=f"{BEST}, {text}", plan=plan, reverts=knob)
        for knob, text, plan in changed
        if plan != best and _runs(plan)
    ]


def _reverted_stages(best: Plan, pipeline: PipelinePlan) -> list[Entry]:
    """A pipeline in the order that is usual, in the place of its own."""
    usual = dataclasses.replace(best, pipeline=dataclasses.replace(pipeline, schedule="1f1b", order=()))
    return [Entry(name=f"{BEST}, 1f1b", plan=usual, reverts="schedule")] if usual != best else []


def _with_comm(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, comm=dataclasses.replace(plan.comm, **changes))


def _plainer(plan: Plan) -> Plan:
    """The next simpler reducer: buckets instead of a schedule, torch's instead of our buckets."""
    if plan.comm.reducer != "scheduled":
        return _with_comm(plan, reducer="ddp")
    comm = CommPlan(
        transport=plan.comm.transport,
        collective=plan.comm.collective,
        servers=plan.comm.servers,
        shares=plan.comm.shares,
        bucket_bytes=plan.comm.partition_bytes,
    )
    return dataclasses.replace(plan, comm=comm, compression=dataclasses.replace(plan.compression, factors=()))


def contenders(chosen: Sequence[Entry], measured: Sequence[Measurement]) -> tuple[Contender, ...]:
    """The entries with what they measured."""
    return tuple(
        Contender(name=e.name, plan=e.plan, rounds_s=m.steps_s, ranks=m.ranks, reverts=e.reverts)
        for e, m in zip(chosen, measured, strict=True)
    )


def _runs(plan: Plan) -> bool:
    """Not every reducer takes every codec, and DDP no rank without samples."""
    try:
        plan.validate(num_ranks=len(plan.batch.samples), global_batch=plan.global_batch)
    except SpecError:
        return False
    return True
