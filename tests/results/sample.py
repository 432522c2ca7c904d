"""A made-up sweep of vgg on mixed4 with figures such as the real one gives, and ways to take parts of it away."""

from __future__ import annotations

import dataclasses
import random

from autotune.results.store.record import (
    AGAIN,
    BEST,
    DDP_DEFAULT,
    DDP_TUNED,
    Comparison,
    Contender,
    Limit,
    Prediction,
    RankResult,
    Role,
    StudyInfo,
    TrialRecord,
    TrialState,
    WorkloadInfo,
)
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import MIB, BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan, default_plan

GLOBAL_BATCH = 64
EVEN, FAIR = (16, 16, 16, 16), (27, 18, 13, 6)
SPEEDS = (1.0, 1 / 1.5, 1 / 2, 1 / 4)
SAMPLE_S = 0.0072
"""One sample on the fastest device."""
NO_ROOM = "rank 3 needs 1.21 GiB but device 'quarter' holds 1 GiB: give it fewer samples"


def plan(
    samples: tuple[int, ...] = FAIR, bucket_bytes: int = MIB, codec: str = "none", reducer: str = "bucketed"
) -> Plan:
    return Plan(
        batch=BatchPlan(samples=samples),
        comm=CommPlan(reducer=reducer, bucket_bytes=bucket_bytes),
        compression=CompressionPlan(codec=codec),
    )


def staged_plan() -> Plan:
    """A pipeline over three of the ranks."""
    pipeline = PipelinePlan(
        first_ops=(0, 9, 14), stage_ranks=((1,), (0,), (2,)), micro_batches=16, schedule="zero-bubble"
    )
    return Plan(batch=BatchPlan(samples=(GLOBAL_BATCH,) * 3 + (0,)), pipeline=pipeline)


def info(
    *, limit: bool = True, command: str = "autotune sweep --workload vgg --cluster mixed4 --trials 24"
) -> StudyInfo:
    workload = WorkloadInfo(
        name="vgg",
        options={},
        fingerprint="0123456789ab",
        global_batch=GLOBAL_BATCH,
        param_bytes=38 * MIB,
        flops_per_sample=5e7,
    )
    return StudyInfo(
        name="vgg-mixed4",
        workload=workload,
        cluster=load_cluster("mixed4"),
        space={},
        seed=0,
        environment={},
        command=command,
        created_at="2026-01-01T00:00:00Z",
        limit=Limit(compute_s=0.191, network_s=0.060, path_s=0.0072) if limit else None,
    )


def ranks(samples: tuple[int, ...], step_s: float, *, late_s: float = 0.0) -> tuple[RankResult, ...]:
    devices = load_cluster("mixed4").devices
    compute = [count * SAMPLE_S / speed for count, speed in zip(samples, SPEEDS, strict=True)]
    return tuple(
        RankResult(
            rank=rank,
            device=device.name,
            samples=count,
            compute_s=busy_s,
            wait_s=max(step_s - busy_s, 0.0),
            cpu_s=0.012 + 0.0011 * count,
            peak_memory_bytes=(150 + 6 * count) * MIB,
            late_s=late_s if rank == 0 else 0.0,
        )
        for rank, (device, count, busy_s) in enumerate(zip(devices, samples, compute, strict=True))
    )


def trial(number: int, role: Role, tried: Plan, step_s: float) -> TrialRecord:
    return TrialRecord(
        number=number,
        role=role,
        state=TrialState.COMPLETE,
        plan=tried,
        steps_s=(step_s * 0.99, step_s, step_s * 1.02),
        ranks=ranks(tried.batch.samples, step_s),
        predicted=Prediction(step_s=step_s * 0.95),
        duration_s=3.1,
    )


def refused(number: int, role: Role, tried: Plan, state: TrialState, reason: str) -> TrialRecord:
    return TrialRecord(number=number, role=role, state=state, plan=tried, reason=reason)


def records() -> list[TrialRecord]:
    """24 trials: the default, tuned DDP, a search that improves, two that do not fit and one that fails."""
    generator = random.Random(1)
    found = [trial(0, Role.DEFAULT, default_plan(EVEN), 0.492)]
    for bucket_mib, step_s in ((25, 0.262), (8, 0.248), (1, 0.241)):
        found.append(trial(len(found), Role.PEER, plan(bucket_bytes=bucket_mib * MIB, reducer="ddp"), step_s))
    found += [refused(4 + i, Role.SEARCH, plan((2, 2, 10, 50)), TrialState.INFEASIBLE, NO_ROOM) for i in range(2)]
    found.append(
        refused(6, Role.SEARCH, plan(codec="bf16"), TrialState.FAILED, "gloo: connection reset\nby peer [rank 2]")
    )
    for number in range(7, 24):
        samples = (20 + number % 8, 18, 16 - number % 4, 10 - number % 8 + number % 4)
        tried = plan(samples, bucket_bytes=generator.choice((MIB // 4, MIB, 4 * MIB)))
        found.append(trial(number, Role.SEARCH, tried, 0.213 + 0.012 * (23 - number)))
    return found


def rounds(step_s: float, seed: int, num_rounds: int = 12) -> tuple[float, ...]:
    generator = random.Random(seed)
    return tuple(step_s * generator.gauss(1, 0.008) for _ in range(num_rounds))


def contender(name: str, tried: Plan, step_s: float, *, seed: int, reverts: str = "") -> Contender:
    found = ranks(tried.batch.samples, step_s)
    return Contender(name=name, plan=tried, rounds_s=rounds(step_s, seed), ranks=found, reverts=reverts)


def comparison(
    *, best_s: float = 0.213, best: Plan | None = None, late_s: float = 0.0, default: bool = True
) -> Comparison:
    """The default, tuned DDP, the best plan, its ablations, and the first once more."""
    tuned = contender(DDP_TUNED, plan(reducer="ddp"), 0.241, seed=2)
    chosen = contender(BEST, best or plan(), best_s, seed=3)
    chosen = dataclasses.replace(chosen, ranks=ranks(chosen.plan.batch.samples, best_s, late_s=late_s))
    reverted = [
        contender("even split", plan(EVEN), 0.463, seed=4, reverts="batch split"),
        contender("big buckets", plan(bucket_bytes=25 * MIB), 0.236, seed=5, reverts="bucket size"),
        contender("ddp reducer", plan(reducer="ddp"), 0.2128, seed=6, reverts="reducer"),
    ]
    if not default:
        return Comparison(contenders=(tuned, chosen, *reverted), steps_per_round=8)
    first = contender(DDP_DEFAULT, default_plan(EVEN), 0.492, seed=1)
    again = contender(DDP_DEFAULT + AGAIN, default_plan(EVEN), 0.492, seed=9)
    return Comparison(contenders=(first, tuned, chosen, *reverted, again), steps_per_round=8)
