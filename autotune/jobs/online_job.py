"""The controller that retunes a training run, and the file that keeps what its meta-network learned in earlier runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.online.background import background_thread
from autotune.online.candidates import RETUNE_ALL, Candidates, Retunable, candidates
from autotune.online.comm_controller import CommController
from autotune.online.controller import Controller
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkEstimate
from autotune.online.meta_network import MetaNetwork
from autotune.online.priors import priors_of
from autotune.online.simulator_check import SimulatorCheck
from autotune.results.store.decision import Decision
from autotune.runtime.transport.link_check import probe_bytes
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.files import replace_file, safe_name
from autotune.workloads.plan import Plan

LEARNED_FOLDER = "learned"


def make_controller(
    job: Job, context: JobContext, plan: Plan, on_decision: Callable[[Decision], None], parts: Retunable = RETUNE_ALL
) -> Controller:
    """A controller with the meta-network of earlier runs of this workload on this cluster. `parts`: what may change."""
    cluster = context.cluster
    space = context.problem.space(allow_lossy=job.allow_lossy)
    costs = cost_model(context.graph, cluster) if cluster.is_emulated else None
    transport = plan.comm.transport

    def candidates_for(running: Plan) -> Candidates:
        found = candidates(space, running.batch.samples, transport=transport, also=[running])
        allowed = [candidate for candidate in found.plans if parts.allow(candidate, running)]
        return found if parts == RETUNE_ALL else Candidates(plans=tuple(allowed))

    memory = load_memory(learned_file(job, context))
    check = SimulatorCheck(context.info, context.graph, context.loop) if costs is not None else None
    if check is not None:
        check.warm_up(plan, cluster)
    comm = CommController(
        priors_of(context.graph, costs, transport),
        candidates_for,
        memory,
        links=LinkEstimate(cluster, may_reown=parts.collective, probe_bytes=probe_bytes(len(cluster.hosts))),
        check=check,
        submit=background_thread(),
    )
    return Controller(
        plan,
        context.limits,
        context.info.global_batch,
        comm=comm,
        moves_samples=parts.samples,
        on_decision=on_decision,
        clock=time.perf_counter,
    )


def learned_file(job: Job, context: JobContext) -> Path:
    """The file with the fine-tuned meta-network and its cases."""
    return (
        job.results / LEARNED_FOLDER / f"{safe_name(context.info.name)}@{safe_name(context.cluster.name)}.safetensors"
    )


def load_memory(path: Path) -> Memory:
    """The state after the last run; before the first, the shipped weights."""
    if path.exists():
        return Memory.of_bytes(path.read_bytes(), str(path))
    return Memory(MetaNetwork.shipped())


def save_memory(path: Path, memory: Memory) -> None:
    """Write the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, memory.to_bytes())
