"""What a training script needs to be retuned on the way: the controller, and plans as the engine of a script runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from autotune.online.background import thinking_aside
from autotune.online.candidates import Candidates, candidates
from autotune.online.comm_controller import CommController
from autotune.online.controller import Controller
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkView
from autotune.online.meta_network import MetaNetwork
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Known, shards_gain
from autotune.results.store.decision import Decision
from autotune.runtime.transport.link_check import look_bytes
from autotune.space.space import joint_space
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import LOSSLESS_CODECS, CommPlan, Plan
from autotune.workloads.split import bounds

UNLIMITED_BYTES = 2**62


def script_controller(
    model: nn.Module, plan: Plan, cluster: Cluster, on_decision: Callable[[Decision], None]
) -> Controller:
    """Rank 0's. Every rank keeps one sample at least, since a script cannot go without; codecs stay what the plan says."""
    samples, num_ranks = plan.batch.samples, len(plan.batch.samples)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = [parameter.numel() * parameter.element_size() for parameter in trained]
    limits = bounds(num_ranks, sum(samples), minimum=1)
    space = joint_space(
        global_batch=sum(samples),
        limits=limits,
        reference=(1.0,) * num_ranks,
        transports=(plan.comm.transport,),
        codecs=LOSSLESS_CODECS,
        param_bytes=sum(sizes),
    )

    def offers(running: Plan) -> Candidates:
        """For the plan's own codec and factors, of which nobody asked to change the one or knows the rows of the other."""
        offered = candidates(space, running.batch.samples, transport=plan.comm.transport)
        made = [replace(as_engine_runs(one), compression=running.compression) for one in offered.plans]
        return Candidates(plans=tuple(dict.fromkeys([*made, running])))

    sized = ModelSizes.of_parameters([tuple(parameter.shape) for parameter in trained], sizes)
    known = Known(model=sized, shards_gain=shards_gain(cluster))
    memory = Memory(MetaNetwork.shipped())
    links = LinkView(cluster, look_bytes=look_bytes(len(cluster.hosts)))
    comm = CommController(known, offers, memory, links=links, thinks=thinking_aside())
    return Controller(plan, limits, sum(samples), comm=comm, on_decision=on_decision, clock=time.perf_counter)


def as_engine_runs(plan: Plan) -> Plan:
    """As the engine carries it out: buckets are partitions that are sent as they are complete."""
    if plan.comm.reducer == "scheduled":
        return plan
    comm = CommPlan(
        reducer="scheduled",
        transport=plan.comm.transport,
        collective=plan.comm.collective,
        servers=plan.comm.servers,
        shares=plan.comm.shares,
        partition_bytes=plan.comm.bucket_bytes,
        credit_bytes=UNLIMITED_BYTES,
        priority="fifo",
    )
    return replace(plan, comm=comm)
