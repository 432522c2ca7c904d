"""A scenario replayed in a lab: the first rank of each host changes the host's real limits."""

from __future__ import annotations

from collections.abc import Callable

from autotune.lab.hosts import load_lab
from autotune.lab.limits import as_lab_host, own_host, set_limits
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError


def lab_surroundings(lab_name: str, cluster: Cluster, rank: int) -> Callable[[Cluster], None]:
    """Changes the limits of the lab host that this rank runs on, if the rank is its first; else does nothing."""
    lab = load_lab(lab_name)
    host, index = own_host(lab), cluster.host_of_rank[rank]
    if host is None or host.name != cluster.hosts[index].name:
        raise SpecError(
            f"rank {rank} runs on lab host {host.name if host else 'unknown'!r}, but in cluster {cluster.name!r} it is on "
            f"{cluster.hosts[index].name!r}: a scenario needs the lab of that cluster, `autotune lab up --cluster …`"
        )
    if cluster.host_of_rank.index(index) != rank:
        return lambda _: None
    return lambda cluster: set_limits(lab, as_lab_host(host, cluster.hosts[index]))
