"""Run by mpirun in a lab: what scheduling is worth, DDP's best beside ours, in turn; WORKLOAD CLUSTER OUT.json.

DDP's bucket is the best of those that people try; of our partitions the three that the simulator ranks first are measured, with each
credit: what it costs to wait for a grant when only one part may be under way, the simulator does not know. "Everything" is the best of
what each way has come to, measured in turn.
Every plan has its ideal beside it: the same plan simulated with links and devices as stated, and nothing else costing time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from autotune.bench import Bench, set_up
from autotune.job import Job, check_job
from autotune.runtime.control import start_control
from autotune.runtime.crew import follow
from autotune.runtime.trial import Effort
from autotune.simulate.cost_model import cost_model
from autotune.simulate.factors import worthwhile_factors
from autotune.simulate.simulator import Simulator
from autotune.tuners import HAND_BUCKETS_BYTES
from results.environment import describe_environment
from results.store import write_json
from tests.benchmarks.schedule_gain import Contender, GainCell
from workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan, default_plan
from workloads.split import even

TRIAL = Effort(warmup=1, steps=4, timeout_s=120, traced=False)
TURN = Effort(warmup=2, steps=3, timeout_s=300, traced=False)
ROUNDS, FINAL_ROUNDS = 8, 4
PARTITIONS_LOG2 = range(16, 24)
CREDITS = (1, 2, 4)
MEASURED = 3


def fastest(bench: Bench, plans: Sequence[Plan]) -> Plan:
    """By a trial each."""
    times = [(median(bench.crew.measure(plan, TRIAL).steps_s), index) for index, plan in enumerate(plans)]
    return plans[min(times)[1]]


def fastest_in_turn(bench: Bench, plans: Sequence[Plan]) -> Plan:
    """Of plans that are few and close to each other."""
    measured = bench.crew.contest(list(plans), FINAL_ROUNDS, TURN)
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


def contenders(bench: Bench, predicted: Simulator) -> dict[str, Plan]:
    samples = even(bench.info.global_batch, bench.limits)
    default = default_plan(samples)
    ddp = [replace(default, comm=replace(default.comm, bucket_bytes=size)) for size in HAND_BUCKETS_BYTES]
    factors = worthwhile_factors(bench.graph, bench.cluster, samples)

    def ours(layers: tuple[str, ...], collective: str = "ring") -> Plan:
        of_size: dict[int, list[Plan]] = {}
        for plan in scheduled(samples, layers, collective):
            of_size.setdefault(plan.comm.partition_bytes, []).append(plan)
        ranked = sorted(of_size.values(), key=lambda same: min(map(predicted.step_s, same)))
        return fastest(bench, [plan for same in ranked[:MEASURED] for plan in same])

    plans = {"plain overlap": default, "DDP, best bucket": fastest(bench, ddp), "priority and crossing": ours(())}
    if factors:
        plans["with factors"] = ours(factors)
    everything = [
        ours(factors, "shards"),
        *(plans[name] for name in ("priority and crossing", "with factors") if name in plans),
    ]
    best_ddp = plans["DDP, best bucket"]
    bucketed = replace(best_ddp, comm=replace(best_ddp.comm, reducer="bucketed"))
    return plans | {"everything": fastest_in_turn(bench, [*everything, bucketed])}


def main() -> None:
    workload, cluster_name, out = sys.argv[1:]
    control = start_control()
    job = Job(workload=workload, clusters=(cluster_name,), results=Path(out).parent)
    (cluster,) = check_job(job, control.size)
    bench = set_up(job, cluster, control)
    if not control.is_leader:
        follow(control, bench.runner)
        return
    costs = cost_model(bench.graph, bench.cluster)
    predicted = Simulator(bench.info, bench.graph, costs)
    ideal = Simulator(bench.info, bench.graph, replace(costs, transports={}))
    plans = contenders(bench, predicted)
    measured = bench.crew.contest(list(plans.values()), ROUNDS, TURN)
    cell = GainCell(
        workload=bench.info.name,
        cluster=bench.cluster,
        label=bench.cluster.label,
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
    bench.crew.dismiss()


if __name__ == "__main__":
    main()
