"""Profile: what each rank's device, each link and each collective costs, measured on all ranks and kept for predictions.

Every rank runs the same list of steps. Devices and codecs are measured by all ranks at once, as they compute at once in
training; links one pair at a time, so that none slows another; then each collective over each transport.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

from autotune.jobs.context import JobContext, agreed, set_up
from autotune.jobs.device_profile import measure_device
from autotune.jobs.job import Job
from autotune.jobs.network_profile import Network, host_links, measure_collectives, measure_links, unavailable
from autotune.jobs.study import now
from autotune.profilers.perfetto import check_trace_file, write_trace
from autotune.profilers.timeline import Timeline
from autotune.results.store.environment import describe_environment
from autotune.results.store.profile import Profile
from autotune.results.store.record import TrialState
from autotune.runtime.control.mpi import Control
from autotune.runtime.trial.runner import Budget
from autotune.runtime.trial.workers import TrialFailedError, combine
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import default_plan
from autotune.workloads.split import even

_STEPS_BEFORE_TRACE = 3


def profile(job: Job, cluster: Cluster, control: Control, say: Callable[[str], None]) -> Profile | None:
    """One workload on one mix; called by all ranks. The profile is rank 0's."""
    if job.trace is not None:
        agreed(control, partial(check_trace_file, job.trace))
    context = set_up(job, cluster, control)
    hosts = hosts_of_ranks(context.cluster, control.share(socket.gethostname()))
    network = Network(context=context, control=control, hosts=hosts, timeout_s=job.timeout_s)
    say(f"{context.info.name} on {context.cluster.name}: devices and codecs")
    ranks = measure_device(job, context, control, host=hosts[control.rank])
    say("links")
    links = measure_links(network)
    say("collectives")
    collectives = measure_collectives(network)
    timeline = traced_step(job, context, control, say) if job.trace is not None else None
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


def traced_step(job: Job, context: JobContext, control: Control, say: Callable[[str], None]) -> Timeline:
    """One step of torch DDP with an even split on all ranks, with torch's ops and the devices' counters."""
    say("one traced step")
    plan = default_plan(even(context.info.global_batch, context.limits), transport=context.transports[0])
    budget = Budget(warmup=0, steps=_STEPS_BEFORE_TRACE, timeout_s=job.timeout_s)
    measured = combine(control.share(context.runner.train(plan, budget, lambda _: None, watched=True)))
    if measured.state is not TrialState.COMPLETE:
        raise TrialFailedError(f"the step to be traced failed: {measured.reason}")
    return measured.timeline


def hosts_of_ranks(cluster: Cluster, machines: Sequence[str]) -> tuple[str, ...]:
    """The host of each rank: as the mix says where links are emulated, else as the ranks find themselves."""
    order = list(dict.fromkeys(machines))
    indices = cluster.host_of_rank if cluster.paces_links else [order.index(machine) for machine in machines]
    named = len(set(indices)) == len(cluster.hosts)
    return tuple(cluster.hosts[index].name if named else f"host{index}" for index in indices)
