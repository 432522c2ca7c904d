"""Run by mpirun: what tracing costs. Trainers that differ only in what is recorded take turns, step by step, in one job.

`mpirun -n 2 python tests/benchmarks/programs/tracing_cost.py [--json FILE]`
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch

from autotune.profilers.torch_trace import OpTrace
from autotune.results.judge.stats import speedup
from autotune.results.store.environment import describe_environment
from autotune.runtime.control.start import start_control
from autotune.runtime.train.tracing import samplers_for
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload

ROUNDS, STEPS = 200, 5
KINDS = (
    "plain group",
    "traced group, off",
    "traced group, recording",
    "counters at 10 Hz",
    "torch.profiler",
    "plain again",
)

torch.set_num_threads(1)
control = start_control()
workload = load_workload("vgg", {})
cluster = load_cluster("this-machine").for_ranks(control.size)
even = workload.global_batch // control.size
plan = Plan(batch=BatchPlan(samples=(even,) * control.size), comm=CommPlan(bucket_bytes=1 << 18))
rank_context = RankContext(
    rank=control.rank,
    device=cluster.devices[control.rank],
    torch_device=torch.device("cpu"),
    network=control.network(),
    is_first_of_host=control.is_leader,
)
groups = Groups(control, cluster)


def run(trainer: Trainer, kind: str) -> tuple[float, float]:
    """The median step of a few, with what this kind records, and the CPU time of one."""
    with ExitStack() as stack:
        if kind == "counters at 10 Hz":
            for sampler in samplers_for(rank_context):
                stack.enter_context(sampler)
        if kind == "torch.profiler":
            stack.enter_context(OpTrace())
            stack.enter_context(trainer.ranges.recorded())
        trainer.barrier()
        trainer.record_collectives(on=kind == "traced group, recording")
        cpu_s = time.process_time()
        step_s = median(trainer.step().total_s for _ in range(STEPS))
        return step_s, (time.process_time() - cpu_s) / STEPS


with ExitStack() as opened:
    plain = opened.enter_context(groups.open("gloo", timeout_s=300))
    traced = opened.enter_context(groups.open("gloo", timeout_s=300, traced=True))
    trainers = [
        Trainer(workload, plan, traced if kind.startswith("traced") else plain, rank_context, seed=0) for kind in KINDS
    ]
    for trainer, kind in zip(trainers, KINDS, strict=True):
        run(trainer, kind)
    rounds: list[list[float]] = [[] for _ in KINDS]
    cpu_rounds: list[list[float]] = [[] for _ in KINDS]
    for number in range(ROUNDS):
        for index in random.Random(number).sample(range(len(KINDS)), len(KINDS)):
            gathered = control.share(run(trainers[index], KINDS[index]))
            rounds[index].append(max(step_s for step_s, _ in gathered))
            cpu_rounds[index].append(sum(cpu_s for _, cpu_s in gathered))
    while trainers:
        trainers.pop().close()
    del plain, traced, trainer

if control.is_leader:
    costs: dict[str, dict[str, dict[str, float]]] = {"step_time": {}, "cpu_time": {}}
    for what, measured in (("step_time", rounds), ("cpu_time", cpu_rounds)):
        for kind, times in zip(KINDS[1:], measured[1:], strict=True):
            ratio = speedup(times, measured[0])
            costs[what][kind] = {"times_plain": ratio.value, "low": ratio.low, "high": ratio.high}
    made_by = {
        "command": "nox -s tracing_cost",
        "label": "measured on this machine",
        "environment": describe_environment(),
    }
    text = json.dumps(made_by | {"rounds": ROUNDS, "steps_per_round": STEPS} | costs, indent=1) + "\n"
    sys.stdout.write(text)
    if "--json" in sys.argv:
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(text, encoding="utf-8")
control.share(None)
