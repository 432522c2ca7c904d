"""What a training run needs to be retuned on the way: the controller, and what it learned in earlier runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autotune.jobs.context import JobContext
from autotune.jobs.job import Job
from autotune.online.background import thinking_aside
from autotune.online.candidates import ALL_PARTS, Candidates, Parts, candidates
from autotune.online.comm_controller import CommController
from autotune.online.controller import Controller
from autotune.online.learning import Memory
from autotune.online.link_estimate import LinkView
from autotune.online.meta_network import MetaNetwork
from autotune.online.priors import known_of
from autotune.online.simulator_check import SecondOpinion
from autotune.results.store.decision import Decision
from autotune.results.store.store import safe_name
from autotune.runtime.transport.link_check import look_bytes
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.plan import Plan

LEARNED_FOLDER = "learned"


def make_controller(
    job: Job, context: JobContext, plan: Plan, on_decision: Callable[[Decision], None], parts: Parts = ALL_PARTS
) -> Controller:
    """Follows devices and links, from what earlier runs of this workload on this mix have taught. `parts`: what may change."""
    cluster = context.cluster
    space = context.problem.space(allow_lossy=job.allow_lossy)
    costs = cost_model(context.graph, cluster) if cluster.is_emulated else None
    transport = plan.comm.transport

    def offers(running: Plan) -> Candidates:
        offered = candidates(space, running.batch.samples, transport=transport, also=[running])
        allowed = [candidate for candidate in offered.plans if parts.allow(candidate, running)]
        return offered if parts == ALL_PARTS else Candidates(plans=tuple(allowed))

    memory = load_memory(learned_file(job, context))
    opinion = SecondOpinion(context.info, context.graph, context.loop) if costs is not None else None
    if opinion is not None:
        opinion.warm_up(plan, cluster)
    comm = CommController(
        known_of(context.graph, costs, transport),
        offers,
        memory,
        links=LinkView(cluster, reowns=parts.collective, look_bytes=look_bytes(len(cluster.hosts))),
        opinion=opinion,
        thinks=thinking_aside(),
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
    """Where what was learned is kept."""
    return (
        job.results / LEARNED_FOLDER / f"{safe_name(context.info.name)}@{safe_name(context.cluster.name)}.safetensors"
    )


def load_memory(path: Path) -> Memory:
    """As the last run left it; before the first, the network that is shipped."""
    if path.exists():
        return Memory.of_bytes(path.read_bytes(), str(path))
    return Memory(MetaNetwork.shipped())


def save_memory(path: Path, memory: Memory) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(memory.to_bytes())
    partial.replace(path)
