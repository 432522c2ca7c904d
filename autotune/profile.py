"""Profile: what each rank's device, each link and each collective costs, measured on all ranks and kept for predictions.

Every rank runs the same list of steps. Devices and codecs are measured by all ranks at once, as they compute at once in
training; links one pair at a time, so that none slows another; then each collective over each transport.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

from autotune.bench import Bench, agreed, set_up
from autotune.device_profile import measure_device
from autotune.job import Job
from autotune.network_profile import Network, host_links, measure_collectives, measure_links, unavailable
from autotune.runtime.control import Control
from autotune.runtime.crew import TrialFailedError, combine
from autotune.runtime.trial import Effort
from autotune.study import now
from profilers.perfetto import check_trace_file, write_trace
from profilers.timeline import Timeline
from results.environment import describe_environment
from results.profile import Profile
from results.record import TrialState
from workloads.cluster import Cluster
from workloads.plan import default_plan
from workloads.split import even

_STEPS_BEFORE_TRACE = 3


def profile(job: Job, cluster: Cluster, control: Control, say: Callable[[str], None]) -> Profile | None:
    """One workload on one mix; called by all ranks. The profile is rank 0's."""
    if job.trace is not None:
        agreed(control, partial(check_trace_file, job.trace))
    bench = set_up(job, cluster, control)
    hosts = hosts_of_ranks(bench.cluster, control.share(socket.gethostname()))
    network = Network(bench=bench, control=control, hosts=hosts, timeout_s=job.timeout_s)
    say(f"{bench.info.name} on {bench.cluster.name}: devices and codecs")
    ranks = measure_device(job, bench, control, host=hosts[control.rank])
    say("links")
    links = measure_links(network)
    say("collectives")
    collectives = measure_collectives(network)
    timeline = traced_step(job, bench, control, say) if job.trace is not None else None
    bench.runner.close()
    if not control.is_leader:
        return None
    if job.trace is not None and timeline is not None:
        write_trace(timeline, job.trace)
    return Profile(
        workload=bench.info.name,
        workload_fingerprint=bench.info.fingerprint,
        cluster=bench.cluster.name,
        cluster_fingerprint=bench.cluster.fingerprint(),
        label=bench.cluster.label,
        ranks=ranks,
        links=links,
        hosts=host_links(links),
        collectives=collectives,
        unavailable=unavailable(network),
        environment=describe_environment(),
        command=job.command,
        created_at=now(),
    )


def traced_step(job: Job, bench: Bench, control: Control, say: Callable[[str], None]) -> Timeline:
    """One step of torch DDP with an even split on all ranks, with torch's ops and the devices' counters."""
    say("one traced step")
    plan = default_plan(even(bench.info.global_batch, bench.limits), transport=bench.transports[0])
    effort = Effort(warmup=0, steps=_STEPS_BEFORE_TRACE, timeout_s=job.timeout_s)
    measured = combine(control.share(bench.runner.train(plan, effort, lambda _: None, watched=True)))
    if measured.state is not TrialState.COMPLETE:
        raise TrialFailedError(f"the step to be traced failed: {measured.reason}")
    return measured.timeline


def hosts_of_ranks(cluster: Cluster, machines: Sequence[str]) -> tuple[str, ...]:
    """The host of each rank: as the mix says where links are emulated, else as the ranks find themselves."""
    order = list(dict.fromkeys(machines))
    indices = cluster.host_of_rank if cluster.paces_links else [order.index(machine) for machine in machines]
    named = len(set(indices)) == len(cluster.hosts)
    return tuple(cluster.hosts[index].name if named else f"host{index}" for index in indices)
