"""The set-up that all jobs share: the workload on every rank, its costs, its rank context, its workers.

All ranks call `set_up` together. What fails on one rank only (a user's factory, a missing file) is agreed on, so that
every rank raises the same error and rank 0 reports which rank it was.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch

from autotune.jobs.job import Job
from autotune.jobs.loss_checks import check_loss
from autotune.lab.replay import lab_surroundings
from autotune.results.store.environment import LAB_VARIABLE, processor_name
from autotune.results.store.record import Limit, WorkloadInfo
from autotune.runtime import device as devices
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.rank_start import take_cores, take_devices, take_transports
from autotune.runtime.control.time_limit import SET_UP_VARIABLE, set_up_limit_s, time_limit
from autotune.runtime.data.batches import batches_of
from autotune.runtime.emulate.replay import Replay
from autotune.runtime.launch.device_choice import VisibleDevices
from autotune.runtime.placed.stages import stage_modules
from autotune.runtime.train.memory import sample_cap, static_bytes
from autotune.runtime.train.tracing import ClockOffset
from autotune.runtime.train.trainer import RankContext
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.device_memory import has_own_memory, models_at_once
from autotune.runtime.trial.runner import RankRunner
from autotune.runtime.trial.workers import Workers
from autotune.search.problem import Problem
from autotune.simulate.limit import stated_sample_s, step_limit
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.space.rank_sets import ALL_RANKS, RankSets, among
from autotune.workloads.capture import COUNTED, capture
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import AutotuneError, InfeasiblePlanError, SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.graphs.graph_file import GraphWorkload
from autotune.workloads.plan import one_round_codecs
from autotune.workloads.plan.choices import transports_for
from autotune.workloads.registry import load_workload
from autotune.workloads.serial import digest
from autotune.workloads.split import Bounds, bounds
from autotune.workloads.workload import PLAIN_LOOP, Described, Loop, Workload, check_no_stages, loop_of

T = TypeVar("T")

_STATE_COPIES = 4
"""Parameters, gradients, and up to two optimizer moments: what a device holds per parameter byte, for the sample caps."""


class AgreedError(AutotuneError):
    """An error of some rank, raised on all of them."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True, slots=True)
class JobContext:
    """Everything a job needs on this rank."""

    workload: Workload
    info: WorkloadInfo
    graph: OpGraph
    cluster: Cluster
    groups: Groups
    rank_context: RankContext
    runner: RankRunner
    workers: Workers
    limits: Bounds
    transports: tuple[str, ...]
    codecs: tuple[str, ...] = field(default_factory=one_round_codecs)
    """To choose from, if the search may be lossy."""
    changing: ChangingCluster | None = None
    """The cluster under the scenario that is replayed, if any."""
    loop: Loop = PLAIN_LOOP
    """The training loop, as the workload states it."""
    staged: StagedPlans = NO_STAGES
    """Plans with pipeline stages that a search may choose."""
    rank_sets: RankSets = ALL_RANKS
    """Sets of ranks that a plan may use, besides all of them."""
    devices: str = ""
    """How many ranks compute on what, where any has an accelerator; recorded with the study."""

    def limit(self) -> Limit | None:
        """The step time no plan can beat, where the cluster file states the devices' speeds."""
        if not self.cluster.is_emulated:
            return None
        return step_limit(
            stated_sample_s(self.graph, self.cluster),
            self.cluster,
            self.graph,
            global_batch=self.info.global_batch,
        )

    @property
    def problem(self) -> Problem:
        """The search problem of this job."""
        return Problem(
            global_batch=self.info.global_batch,
            param_bytes=self.info.param_bytes,
            graph=self.graph,
            cluster=self.cluster,
            limits=self.limits,
            transports=self.transports,
            codecs=self.codecs,
            loop=self.loop,
            staged=self.staged,
            rank_sets=self.rank_sets,
        )


def agreed(control: Control, action: Callable[[], T]) -> T:
    """Run `action` on every rank; if it fails on any, every rank raises the same error, naming the first that failed."""
    result: T | None = None
    fault: tuple[str, int] | None = None
    try:
        with time_limit(control, set_up_limit_s(), "setting up", f"${SET_UP_VARIABLE} sets the limit in seconds"):
            result = action()
    except AutotuneError as error:
        fault = str(error), error.exit_code
    except Exception as error:  # noqa: BLE001 - a user's factory may raise anything
        fault = f"{type(error).__name__}: {error}", 1
    faults = control.share(fault)
    failed = [(rank, *entry) for rank, entry in enumerate(faults) if entry is not None]
    if failed:
        rank, message, exit_code = failed[0]
        everywhere = len(failed) == control.size
        raise AgreedError(message if everywhere else f"rank {rank}: {message}", exit_code)
    return cast("T", result)


def set_up(job: Job, cluster: Cluster, control: Control) -> JobContext:
    """Build the job context of this rank; called by all ranks together."""
    torch.set_num_threads(take_cores(control))
    workload = agreed(control, lambda: load_workload(job.workload, job.options))
    visible = VisibleDevices() if cluster.is_emulated else devices.visible()
    choices = take_devices(control, visible)
    device = devices.take(choices.ranks[control.rank].index)
    cluster = cluster.on_hardware(control.share(device.hardware or processor_name()))
    graph = agreed(control, lambda: capture_workload(workload, job.seed, name=job.workload))
    loop = loop_of(workload)
    info = workload_info(job, workload.global_batch, graph, loop=loop, sync_norm=getattr(workload, "sync_norm", False))
    limits = agreed(control, lambda: job_bounds(workload, graph, cluster, total=workload.global_batch))
    groups = agreed(control, lambda: Groups(control, cluster, device))
    accelerators = [choice.type if choice.index is not None else "" for choice in choices.ranks]
    rank, hosts = control.rank, control.share(socket.gethostname())
    on_host = hosts.count(hosts[rank])
    changing = ChangingCluster(cluster, load_scenario(job.replay)) if job.replay is not None else None
    rank_context = RankContext(
        rank=rank,
        device=cluster.devices[rank],
        torch_device=device.device,
        graph=graph if cluster.is_emulated else None,
        is_first_of_host=hosts.index(hosts[rank]) == rank,
        on_accelerators=any(accelerators),
        network=control.network(),
        replay=agreed(control, lambda: _replay(changing, groups, rank)),
    )
    ahead_s, error_s = control.clock_offset()
    clock = ClockOffset(ahead_s=ahead_s, error_s=error_s)
    runner = RankRunner(
        workload,
        groups,
        rank_context,
        seed=job.seed,
        clock=clock,
        graph=graph,
        share=partial(_share_in_time, control) if any(control.share(has_own_memory(device))) else None,
        models_at_once=min(control.share(models_at_once(graph.param_bytes, device, ranks_on_host=on_host))),
    )
    gc.freeze()  # these objects stay: the collection after each trial need not visit them
    on_host_transports = agreed(control, lambda: take_transports(control, job.transports))
    return JobContext(
        workload=workload,
        info=info,
        graph=graph,
        cluster=cluster,
        groups=groups,
        rank_context=rank_context,
        runner=runner,
        workers=Workers(control, runner),
        limits=limits,
        transports=transports_for(accelerators, on_host_transports),
        devices=choices.summary if any(accelerators) else "",
        changing=changing,
        loop=loop,
    )


def capture_workload(workload: Workload, seed: int, *, name: str = "") -> OpGraph:
    """The costs of a workload's model, from two tiny forward passes, after its loss has been checked. `name`: for messages."""
    torch.manual_seed(seed)
    model = workload.model()
    batches = batches_of(workload, (workload.global_batch,), 0, seed=seed)
    if batches.num_samples < workload.global_batch:
        raise SpecError(
            f"workload {workload.name!r} has {batches.num_samples} samples but a global batch of "
            f"{workload.global_batch}: use a smaller batch or more data"
        )
    check_loss(workload, model, batches.fetch, name=name or workload.name)
    fetched = {count: batches.fetch(torch.arange(count)) for count in COUNTED}
    return capture(model, lambda count: workload.loss(model, fetched[count]))


def with_dataflow(graph: OpGraph, workload: Workload, seed: int) -> OpGraph:
    """The graph with its dataflow edges, which cuts into stages need and which take a while to find."""
    from autotune.workloads.dataflow import with_edges  # noqa: PLC0415 - torch.export is slow to load, and few need it

    torch.manual_seed(seed)
    model = workload.model()
    batches = batches_of(workload, (workload.global_batch,), 0, seed=seed)
    return with_edges(graph, model, lambda count: workload.loss(model, batches.fetch(torch.arange(count))))


def with_held_bytes(graph: OpGraph, workload: Workload, seed: int) -> OpGraph:
    """The graph with the bytes that a rank holds between steps, found by one step: only the optimizer can report its state."""
    torch.manual_seed(seed)
    model = workload.model()
    optimizer = workload.optimizer(model)
    batches = batches_of(workload, (workload.global_batch,), 0, seed=seed)
    workload.loss(model, batches.fetch(torch.arange(workload.min_samples))).backward()
    optimizer.step()
    return replace(graph, held_bytes=static_bytes(model, optimizer, buffer_bytes=0))


def workload_info(
    job: Job, global_batch: int, graph: OpGraph, *, loop: Loop = PLAIN_LOOP, sync_norm: bool = False
) -> WorkloadInfo:
    """The workload as records and reports name it."""
    settings = [loop.settings] if loop.settings else []
    return WorkloadInfo(
        name=job.workload_name,
        options=dict(job.options),
        fingerprint=digest([job.workload, job.options, global_batch, graph.fingerprint(), *settings]),
        global_batch=global_batch,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
        num_local_norms=0 if sync_norm else num_norms(graph),
    )


def num_norms(graph: OpGraph) -> int:
    """Layers that normalise by the statistics of the current samples."""
    return sum(op.kind.startswith("BatchNorm") for op in graph.ops)


def sample_bounds(workload: Described, graph: OpGraph, cluster: Cluster, *, total: int) -> Bounds:
    """Fewest and most samples per rank: the workload's minimum, and what each device's memory holds."""
    static = _STATE_COPIES * graph.param_bytes
    passes = loop_of(workload).accumulate
    caps = [
        min(total, passes * sample_cap(static, graph.saved_bytes_per_sample, device, total))
        for device in cluster.devices
    ]
    limits = bounds(len(cluster.devices), total, minimum=workload.min_samples)
    limits.check(total)
    limits = without_small(bounds(len(cluster.devices), total, minimum=workload.min_samples, caps=caps))
    limits.check(total)
    return limits


def graph_bounds(workload: GraphWorkload, cluster: Cluster, *, total: int) -> Bounds:
    """Of a graph without the model, likewise."""
    try:
        return sample_bounds(workload, workload.graph, cluster, total=total)
    except InfeasiblePlanError:
        if workload.cuts is None:
            raise
        return bounds(len(cluster.devices), total, minimum=workload.min_samples)


def without_small(limits: Bounds) -> Bounds:
    """No samples for ranks whose memory does not hold the least that a rank can have, if it holds them on some other rank."""
    able = [rank for rank, (low, cap) in enumerate(zip(limits.minimums, limits.caps, strict=True)) if cap >= low]
    return among(limits, able) if able else limits


def job_bounds(workload: Workload, graph: OpGraph, cluster: Cluster, *, total: int) -> Bounds:
    """The same, without caps where the model fits no device but can be cut into stages: plans that hold it whole are then found
    infeasible one by one, and plans with stages are not.
    """
    try:
        return sample_bounds(workload, graph, cluster, total=total)
    except InfeasiblePlanError:
        try:
            check_no_stages(workload.name, loop_of(workload))
            stage_modules(workload, workload.model())
        except SpecError:
            pass
        else:
            return bounds(len(cluster.devices), total, minimum=workload.min_samples)
        raise


def _share_in_time(control: Control, message: Any, timeout_s: float) -> list[Any]:
    """Every rank's message on every rank; rank 0 raises RankSilentError if one does not answer in time."""
    return list(control.broadcast(control.gather(message, timeout_s=timeout_s)))


def _replay(changing: ChangingCluster | None, groups: Groups, rank: int) -> Replay | None:
    if changing is None:
        return None
    surroundings: Callable[[Cluster], None] = groups.set_links
    if changing.cluster.in_lab:
        surroundings = lab_surroundings(os.environ[LAB_VARIABLE], changing.cluster, rank)
    return Replay(changing, rank, surroundings)
