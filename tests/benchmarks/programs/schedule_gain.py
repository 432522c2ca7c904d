"""Run by mpirun in a lab: the gain of scheduling over DDP's best bucket, interleaved; WORKLOAD CLUSTER OUT.json.

DDP's bucket is the best of the usual sizes. Of our partitions, the three that the simulator ranks first are measured with
each credit: the simulator does not model the wait for the scheduler if only one partition may be in flight. "Everything"
is the best plan of all kinds, measured interleaved.
Every plan has its ideal beside it: the same plan simulated with links and devices as stated and without other costs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.search.baselines import TUNED_BUCKETS_BYTES
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.factors import worthwhile_factors
from autotune.simulate.simulator import Simulator
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan, default_plan
from autotune.workloads.split import even
from tests.benchmarks.schedule_gain import Contender, GainCell

TRIAL = Budget(warmup=1, steps=4, timeout_s=120, traced=False)
ROUND = Budget(warmup=2, steps=3, timeout_s=300, traced=False)
ROUNDS, FINAL_ROUNDS = 8, 4
PARTITIONS_LOG2 = range(16, 24)
CREDITS = (1, 2, 4)
MEASURED = 3


def fastest(context: JobContext, plans: Sequence[Plan]) -> Plan:
    """By one trial each."""
    times = [(median(context.workers.measure(plan, TRIAL).steps_s), index) for index, plan in enumerate(plans)]
    return plans[min(times)[1]]


def fastest_interleaved(context: JobContext, plans: Sequence[Plan]) -> Plan:
    """Of a few plans that are close to each other."""
    measured = context.workers.compare(list(plans), FINAL_ROUNDS, ROUND)
    return plans[min(range(len(plans)), key=lambda index: median(measured[index].steps_s))]


def scheduled(samples: tuple[int, ...], factors: tuple[str, ...], collective: str) -> list[Plan]:
    """Every partition and credit."""
    return [
        Plan(
            batch=BatchPlan(samples=samples),
            comm=CommPlan(
                reducer="scheduled",
                partition_bytes=2**size,
                credit_bytes=credit * 2**size,
                crosses_steps=True,
                collective=collective,
            ),
            compression=CompressionPlan(factors=factors),
        )
        for size in PARTITIONS_LOG2
        for credit in CREDITS
    ]


def contenders(context: JobContext, predicted: Simulator) -> dict[str, Plan]:
    samples = even(context.info.global_batch, context.limits)
    default = default_plan(samples)
    ddp = [replace(default, comm=replace(default.comm, bucket_bytes=size)) for size in TUNED_BUCKETS_BYTES]
    factors = worthwhile_factors(context.graph, context.cluster, samples)

    def ours(layers: tuple[str, ...], collective: str = "ring") -> Plan:
        of_size: dict[int, list[Plan]] = {}
        for plan in scheduled(samples, layers, collective):
            of_size.setdefault(plan.comm.partition_bytes, []).append(plan)
        ranked = sorted(of_size.values(), key=lambda same: min(map(predicted.step_s, same)))
        return fastest(context, [plan for same in ranked[:MEASURED] for plan in same])

    plans = {
        "plain overlap": default,
        "DDP, best bucket": fastest(context, ddp),
        "priority and cross-step overlap": ours(()),
    }
    if factors:
        plans["with factors"] = ours(factors)
    everything = [
        ours(factors, "shards"),
        *(plans[name] for name in ("priority and cross-step overlap", "with factors") if name in plans),
    ]
    best_ddp = plans["DDP, best bucket"]
    bucketed = replace(best_ddp, comm=replace(best_ddp.comm, reducer="bucketed"))
    return plans | {"everything": fastest_interleaved(context, [*everything, bucketed])}


def main() -> None:
    workload, cluster_name, out = sys.argv[1:]
    control = start_control()
    job = Job(workload=workload, clusters=(cluster_name,), results=Path(out).parent)
    (cluster,) = check_job(job, control.size)
    context = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, context.runner)
        return
    costs = cost_model(context.graph, context.cluster)
    predicted = Simulator(context.info, context.graph, costs)
    ideal = Simulator(context.info, context.graph, replace(costs, transports={}))
    plans = contenders(context, predicted)
    measured = context.workers.compare(list(plans.values()), ROUNDS, ROUND)
    cell = GainCell(
        workload=context.info.name,
        cluster=context.cluster,
        label=context.cluster.label,
        environment=describe_environment(),
        contenders=tuple(
            Contender(
                name=name,
                plan=plan,
                rounds_s=run.steps_s,
                ideal_s=ideal.step_s(plan),
                cpu_s=sum(rank.cpu_s for rank in run.ranks),
            )
            for (name, plan), run in zip(plans.items(), measured, strict=True)
        ),
    )
    write_json(Path(out), cell)
    context.workers.dismiss()


if __name__ == "__main__":
    main()
