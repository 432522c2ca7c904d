"""Run by mpirun on 2 ranks: rounds of three runs in random order, two on one cluster and one on the same cluster 5 % slower.

    paced_runs.py OUT.json JOB ROUNDS

Each run is a trial of its own: trainer, process group, warm-up. Everything that the cluster states (devices and links) is
5 % slower in the slower one. Rank 0 writes the runs of this job.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from pathlib import Path

from autotune.jobs.context import JobContext, set_up
from autotune.jobs.job import Job, check_job
from autotune.results.judge.series import Run
from autotune.results.store.record import TrialState
from autotune.results.store.store import write_json
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import carry_out
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.plan import MIB, BatchPlan, CommPlan, Plan
from autotune.workloads.serial import to_data

CLUSTER_FILE = Path(__file__).parents[1] / "clusters" / "pair.toml"
SLOWER = 1.05
SERIES = ("a", "b", "slower")
"""The first two are the same; which of them runs when is drawn anew in every round."""
BUDGET = Budget(warmup=1, steps=20, timeout_s=60)


def slower(cluster: Cluster) -> Cluster:
    """The cluster with every stated speed divided by 1.05."""
    hosts = tuple(_slower_host(host) for host in cluster.hosts)
    return dataclasses.replace(cluster, name=f"{cluster.name}-slower", hosts=hosts)


def _slower_host(host: Host) -> Host:
    assert host.link is not None
    up, down = host.link.up_bytes_per_s / SLOWER, host.link.down_bytes_per_s / SLOWER
    link = dataclasses.replace(host.link, up_bytes_per_s=up, down_bytes_per_s=down)
    return dataclasses.replace(host, devices=tuple(map(_slower_device, host.devices)), link=link)


def _slower_device(device: Device) -> Device:
    assert device.flops_per_s is not None
    assert device.memory_bytes_per_s is not None
    flops, memory = device.flops_per_s / SLOWER, device.memory_bytes_per_s / SLOWER
    return dataclasses.replace(device, flops_per_s=flops, memory_bytes_per_s=memory)


def lead(control: Control, contexts: tuple[JobContext, JobContext], job_number: int, num_rounds: int) -> list[Run]:
    """Rank 0: broadcast which cluster is next, measure, record."""
    context = contexts[0]
    samples = context.info.global_batch // 2
    plan = Plan(batch=BatchPlan(samples=(samples, samples)), comm=CommPlan(bucket_bytes=MIB // 4))
    generator = random.Random(job_number)
    runs = []
    for number in range(num_rounds):
        for name in generator.sample(SERIES, len(SERIES)):
            which = int(name == "slower")
            control.broadcast(which)
            load = os.getloadavg()[0]
            measured = contexts[which].workers.measure(plan, BUDGET)
            if measured.state is not TrialState.COMPLETE:
                raise RuntimeError(measured.reason)
            run = Run(
                series=name,
                job=job_number,
                round_number=number,
                steps_s=tuple(round(step, 6) for step in measured.steps_s),
                cpu_s_per_step=round(sum(rank.cpu_s for rank in measured.ranks), 6),
                load=load,
            )
            runs.append(run)
    control.broadcast(None)
    return runs


def follow(control: Control, contexts: tuple[JobContext, JobContext]) -> None:
    """Every other rank: receive the cluster, then the order."""
    while (which := control.broadcast()) is not None:
        order = control.broadcast()
        control.gather(to_data(carry_out(order, contexts[which].runner)))


def main(out: Path, job_number: int, num_rounds: int) -> None:
    control = start_control()
    job = Job(workload="vgg-tiny", clusters=(str(CLUSTER_FILE),), results=out.parent, transports=("gloo",))
    (cluster,) = check_job(job, control.size)
    contexts = set_up(job, cluster, control), set_up(job, slower(cluster), control)
    if control.is_leader:
        write_json(out, lead(control, contexts, job_number, num_rounds))
    else:
        follow(control, contexts)
    for context in contexts:
        context.runner.close()
    control.share(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
