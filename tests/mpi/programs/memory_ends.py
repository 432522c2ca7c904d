"""Run by mpirun on two ranks: trials of a workload whose second rank has memory for 8 samples; one JSON line each from rank 0.

CPU ranks play the part of ranks with memory of their own: they run the local step, and hold one model at a time.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autotune.jobs import context as module
from autotune.jobs.context import set_up
from autotune.jobs.job import Job, check_job
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import follow
from autotune.workloads.graph import OpGraph
from autotune.workloads.models.base import SupervisedWorkload
from autotune.workloads.plan import BatchPlan, CommPlan, PipelinePlan, Plan

MOST_SAMPLES = 40
control = start_control()
opened = [0]
loss = SupervisedWorkload.loss


def limited(self: Any, model: torch.nn.Module, batch: Any) -> torch.Tensor:
    if control.rank == 1 and len(batch[0]) > MOST_SAMPLES:
        raise torch.OutOfMemoryError("tried to allocate 8 GiB")
    return loss(self, model, batch)


def plan(*samples: int, **comm: Any) -> Plan:
    return Plan(batch=BatchPlan(samples=samples), comm=CommPlan(**comm))


def count_opened(context: module.JobContext) -> None:
    real = context.groups.open

    def open_group(*given: Any, **how: Any) -> Any:
        opened[0] += 1
        return real(*given, **how)

    context.groups.open = open_group  # type: ignore[method-assign]


def report(name: str, context: module.JobContext, plan: Plan) -> None:
    before = opened[0]
    found = context.workers.measure(plan, Budget(warmup=1, steps=2, timeout_s=30, traced=False))
    line = {"name": name, "state": found.state.value, "reason": found.reason, "opened": opened[0] - before}
    sys.stdout.write(json.dumps(line) + "\n")


def stages(graph: OpGraph) -> PipelinePlan:
    cut = len(graph.ops) // 2
    return PipelinePlan(first_ops=(0, cut), stage_ranks=((0,), (1,)), micro_batches=2)


for tries_locally in (False, True):
    SupervisedWorkload.loss = limited  # type: ignore[method-assign]
    module.has_own_memory = lambda _, tries=tries_locally: tries  # type: ignore[assignment]
    module.models_at_once = lambda *_, **__: 1  # type: ignore[assignment]
    job = Job(workload="mlp-tiny", clusters=("this-machine",), results=Path(sys.argv[1]))
    (cluster,) = check_job(job, control.size)
    SupervisedWorkload.loss = loss  # type: ignore[method-assign] # costs are captured on whole batches
    context = set_up(job, cluster, control)
    SupervisedWorkload.loss = limited  # type: ignore[method-assign]
    total = context.info.global_batch
    count_opened(context)
    if not control.is_leader:
        follow(control, context.runner)
        continue
    name = "local step" if tries_locally else "in the step"
    report(f"{name}: fits", context, plan(total - 8, 8))
    report(f"{name}: ends", context, plan(total - 48, 48, reducer="scheduled"))
    report(f"{name}: fits again", context, plan(total - 8, 8, reducer="scheduled"))
    plans = [plan(total - 8, 8, reducer=reducer) for reducer in ("ddp", "bucketed", "scheduled")]
    plans.append(replace(plan(total, total), pipeline=stages(context.graph)))
    compared = context.workers.compare(plans, 2, Budget(warmup=1, steps=2, timeout_s=90))
    line = {"name": f"{name}: compared", "rounds": [len(one.steps_s) for one in compared]}
    sys.stdout.write(json.dumps(line) + "\n")
    context.workers.dismiss()
