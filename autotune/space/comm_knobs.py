"""Knobs of how gradients are sent: reducer, message size, credit, collective, transport."""

from __future__ import annotations

from dataclasses import replace

from autotune.space.knob import Knob, Reset, Scope, Values, with_comm, with_compression
from autotune.workloads.plan import CommPlan, Plan, ReducerKind
from autotune.workloads.quantity import format_bytes

MIN_BUCKET_LOG2 = 16
CROSS_STEP = "cross-step"
"""Of the knob "reducer": scheduled, and the next step begins before all gradients have arrived."""
CREDITS = ("4 partitions", "1 partitions", "2 partitions", "8 partitions", "16 partitions")
"""Bytes in flight, in partitions; the first is a middling one."""


def is_scheduled(plan: Plan) -> bool:
    return plan.comm.is_scheduled


def _write_reducer(plan: Plan, value: str, _scope: Scope) -> Plan:
    if value == CROSS_STEP:
        return with_comm(plan, reducer=ReducerKind.SCHEDULED.value, crosses_steps=True)
    return with_comm(plan, reducer=value)


def _read_reducer(plan: Plan) -> str:
    return CROSS_STEP if plan.comm.overlaps_steps else str(plan.comm.reducer)


def _reset_reducer(best: Plan, _default: Plan) -> list[Reset]:
    barrier = Reset(title="cross-step overlap", text="a barrier every step", plan=with_comm(best, crosses_steps=False))
    if not best.comm.is_scheduled:
        return [Reset(title="reducer", text="DDP reducer", plan=with_comm(best, reducer=ReducerKind.DDP.value))]
    comm = CommPlan(
        transport=best.comm.transport,
        collective=best.comm.collective,
        servers=best.comm.servers,
        shares=best.comm.shares,
        bucket_bytes=best.comm.partition_bytes,
    )
    plain = with_compression(replace(best, comm=comm), factors=())
    return [barrier, Reset(title="reducer", text="plain buckets", plan=plain)]


def _write_size(plan: Plan, value: int, _scope: Scope) -> Plan:
    return with_comm(plan, **{"partition_bytes" if plan.comm.is_scheduled else "bucket_bytes": 2 ** int(value)})


def _reset_size(best: Plan, default: Plan) -> list[Reset]:
    name, field, plural = (
        ("partition size", "partition_bytes", "partitions")
        if best.comm.is_scheduled
        else ("bucket size", "bucket_bytes", "buckets")
    )
    size = default.comm.bucket_bytes
    return [Reset(title=name, text=f"{format_bytes(size)} {plural}", plan=with_comm(best, **{field: size}))]


def _write_credit(plan: Plan, value: str, _scope: Scope) -> Plan:
    return with_comm(plan, credit_bytes=int(value.split(maxsplit=1)[0]) * plan.comm.partition_bytes)


def _read_credit(plan: Plan) -> str:
    return f"{max(plan.comm.credit_bytes // plan.comm.partition_bytes, 1)} partitions"


def _reset_collective(best: Plan, _default: Plan) -> list[Reset]:
    ring = with_comm(best, collective="ring", servers=(), shares=())
    return [Reset(title="collective", text="a ring", plan=ring)]


def _reset_transport(best: Plan, default: Plan) -> list[Reset]:
    transport = default.comm.transport
    return [Reset(title="transport", text=f"over {transport}", plan=with_comm(best, transport=transport))]


REDUCER = Knob(
    name="reducer",
    text="how gradients are sent: bucketed, scheduled with a barrier every step, or scheduled with cross-step overlap",
    values=lambda scope: Values(choices=scope.reducers),
    write=_write_reducer,
    read=_read_reducer,
    resets=_reset_reducer,
)
SIZE = Knob(
    name="bucket_log2",
    text="the size of a bucket or partition, as a power of two",
    values=lambda scope: Values(low=MIN_BUCKET_LOG2, high=scope.max_bucket_log2, whole=True),
    write=_write_size,
    read=lambda plan: plan.comm.message_bytes.bit_length() - 1,
    after=("reducer",),
    resets=_reset_size,
    is_always_searched=True,
)
CREDIT = Knob(
    name="credit",
    text="bytes in flight at once, in partitions",
    values=lambda scope: Values(choices=CREDITS if scope.reducers != ("bucketed",) else CREDITS[:1]),
    write=_write_credit,
    read=_read_credit,
    applies=is_scheduled,
    after=("bucket_log2",),
    in_grid=False,
)
COLLECTIVE = Knob(
    name="collective",
    text="how a sum over ranks is carried out",
    values=lambda scope: Values(choices=scope.collectives),
    write=lambda plan, value, _scope: with_comm(plan, collective=value),
    read=lambda plan: plan.comm.collective,
    resets=_reset_collective,
)
TRANSPORT = Knob(
    name="transport",
    text="what carries tensors between ranks",
    values=lambda scope: Values(choices=scope.transports),
    write=lambda plan, value, _scope: with_comm(plan, transport=value),
    read=lambda plan: plan.comm.transport,
    resets=_reset_transport,
    is_always_searched=True,
)
