"""Profile: the costs of each rank's device, each link and each collective, measured on all ranks and kept for predictions.

Every rank runs the same list of steps. Devices and codecs are measured by all ranks at once, as they compute at once in
training; links one pair after another, so that none slows another; then each collective over each transport.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

from autotune.jobs.context import JobContext, agreed, set_up
from autotune.jobs.device_profile import measure_device
from autotune.jobs.evaluate import now
from autotune.jobs.job import ProfileJob
from autotune.jobs.network_profile import Network, host_links, measure_collectives, measure_links, unavailable
from autotune.profilers.perfetto import check_trace_file, write_trace
from autotune.profilers.timeline import Timeline
from autotune.results.show.watcher import Watcher
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import Profile
from autotune.results.store.record import TrialState
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.outcome import RankOutcome
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import TrialFailedError, combine
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import default_plan
from autotune.workloads.serial import from_data, to_data
from autotune.workloads.split import even

_STEPS_BEFORE_TRACE = 3


def profile(job: ProfileJob, cluster: Cluster, control: Control, watcher: Watcher) -> Profile | None:
    """One workload on one cluster; called by all ranks. Rank 0 returns the profile."""
    if job.trace is not None:
        agreed(control, partial(check_trace_file, job.trace))
    context = set_up(job, cluster, control)
    hosts = hosts_of_ranks(context.cluster, control.share(socket.gethostname()))
    network = Network(context=context, control=control, hosts=hosts, timeout_s=job.timeout_s)
    watcher.phase(f"{context.info.name} on {context.cluster.name}: devices and codecs")
    ranks = measure_device(job, context, control, host=hosts[control.rank])
    watcher.phase("links")
    links = measure_links(network)
    watcher.phase("collectives")
    collectives = measure_collectives(network)
    timeline = traced_step(job, context, control, watcher) if job.trace is not None else None
    context.runner.close()
    if not control.is_leader:
        return None
    if job.trace is not None and timeline is not None:
        write_trace(timeline, job.trace)
    return Profile(
        workload=context.info.name,
        workload_fingerprint=context.info.fingerprint,
        cluster=context.cluster.name,
        cluster_fingerprint=context.cluster.fingerprint(),
        label=context.cluster.label,
        ranks=ranks,
        links=links,
        hosts=host_links(links),
        collectives=collectives,
        unavailable=unavailable(network),
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
    )


def traced_step(job: ProfileJob, context: JobContext, control: Control, watcher: Watcher) -> Timeline:
    """One step of torch DDP with an even split on all ranks, with torch's ops and the devices' counters."""
    watcher.phase("one traced step")
    plan = default_plan(even(context.info.global_batch, context.limits), transport=context.transports[0])
    budget = Budget(warmup=0, steps=_STEPS_BEFORE_TRACE, timeout_s=job.timeout_s)
    own = context.runner.train(plan, budget, lambda _: None, watched=True)
    measured = combine([from_data(RankOutcome, one, "an outcome") for one in control.share(to_data(own))])
    if measured.state is not TrialState.COMPLETE:
        raise TrialFailedError(f"the step to be traced failed: {measured.reason}")
    return measured.timeline


def hosts_of_ranks(cluster: Cluster, machines: Sequence[str]) -> tuple[str, ...]:
    """The host of each rank: by the cluster file where links are emulated, else by the machine that the rank runs on."""
    order = list(dict.fromkeys(machines))
    indices = cluster.host_of_rank if cluster.paces_links else [order.index(machine) for machine in machines]
    named = len(set(indices)) == len(cluster.hosts)
    return tuple(cluster.hosts[index].name if named else f"host{index}" for index in indices)
