"""The controller that retunes a training script, and plans as the engine of a script runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from autotune.online.background import background_thread
from autotune.online.candidates import Candidates, candidates
from autotune.online.comm_controller import CommController
from autotune.online.controller import Controller
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkEstimate
from autotune.online.meta_network import MetaNetwork
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Priors, shards_gain
from autotune.results.store.decision import Decision
from autotune.runtime.transport.link_check import probe_bytes
from autotune.search.problem import Problem
from autotune.workloads.capture import owner_kind
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import CommPlan, Plan, Priority, ReducerKind
from autotune.workloads.split import bounds

UNLIMITED_BYTES = 2**62


def script_controller(
    model: nn.Module, plan: Plan, cluster: Cluster, on_decision: Callable[[Decision], None]
) -> Controller:
    """The controller of rank 0. Every rank keeps at least one sample, as a script requires; the plan's compression stays."""
    samples, num_ranks = plan.batch.samples, len(plan.batch.samples)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained.values()]
    limits = bounds(num_ranks, sum(samples), minimum=1)
    problem = Problem(
        global_batch=sum(samples),
        param_bytes=sum(sizes),
        graph=None,
        cluster=cluster,
        limits=limits,
        transports=(plan.comm.transport,),
    )
    space = problem.space(allow_lossy=False)

    def candidates_for(running: Plan) -> Candidates:
        """Candidates with the compression of the running plan, which a script does not change."""
        found = candidates(space, running.batch.samples, transport=plan.comm.transport)
        made = [replace(as_engine_runs(one), compression=running.compression) for one in found.plans]
        return Candidates(plans=tuple(dict.fromkeys([*made, running])))

    shapes = [tuple(parameter.shape) for parameter in trained.values()]
    kinds = [owner_kind(model, name) for name in trained]
    priors = Priors(model=ModelSizes.of_parameters(shapes, sizes, kinds), shards_gain=shards_gain(cluster))
    memory = Memory(MetaNetwork.shipped())
    links = LinkEstimate(cluster, probe_bytes=probe_bytes(len(cluster.hosts)))
    comm = CommController(priors, candidates_for, memory, links=links, submit=background_thread())
    return Controller(plan, limits, sum(samples), comm=comm, on_decision=on_decision, clock=time.perf_counter)


def as_engine_runs(plan: Plan) -> Plan:
    """The plan that the engine of a script runs: buckets are partitions that are sent in the order in which they are ready."""
    if plan.comm.is_scheduled:
        return plan
    comm = CommPlan(
        reducer=ReducerKind.SCHEDULED.value,
        transport=plan.comm.transport,
        collective=plan.comm.collective,
        servers=plan.comm.servers,
        shares=plan.comm.shares,
        partition_bytes=plan.comm.bucket_bytes,
        credit_bytes=UNLIMITED_BYTES,
        priority=Priority.FIFO.value,
    )
    return replace(plan, comm=comm)
