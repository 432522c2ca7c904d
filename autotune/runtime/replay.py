"""A trace as it is replayed: before each step, this rank's surroundings become what the trace says.

Paced devices and links are told their new speeds. In a lab, the first rank of each host changes the host's real limits.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.lab.hosts import load_lab
from autotune.lab.limits import as_lab_host, own_host, set_limits
from workloads.cluster import Cluster, Device
from workloads.errors import SpecError
from workloads.trace import ChangingMix


class Replay:
    """What a trace does to one rank. `set_surroundings` hears of every change, and once more when a trial ends."""

    def __init__(self, mix: ChangingMix, rank: int, set_surroundings: Callable[[Cluster], None]) -> None:
        self._mix = mix
        self._rank = rank
        self._set_surroundings = set_surroundings
        self._now = mix.cluster

    def enter(self, *, num_steps: int, trained_s: float) -> Device:
        """A trainer that has come this far starts a step; this rank's device in it."""
        self._become(self._mix.at(num_steps if self._mix.trace.clock == "step" else trained_s))
        return self._now.devices[self._rank]

    def leave(self) -> None:
        """As the cluster file says again."""
        self._become(self._mix.cluster)

    def _become(self, mix: Cluster) -> None:
        if mix is not self._now:
            self._set_surroundings(mix)
            self._now = mix


def lab_surroundings(lab_name: str, cluster: Cluster, rank: int) -> Callable[[Cluster], None]:
    """Changes the limits of the lab host that this rank runs on, if the rank is its first; else does nothing."""
    lab = load_lab(lab_name)
    host, index = own_host(lab), cluster.host_of_rank[rank]
    if host is None or host.name != cluster.hosts[index].name:
        raise SpecError(
            f"rank {rank} runs on lab host {host.name if host else 'unknown'!r}, but in cluster {cluster.name!r} it is on "
            f"{cluster.hosts[index].name!r}: a trace needs the lab of that very cluster, `autotune lab up --cluster …`"
        )
    if cluster.host_of_rank.index(index) != rank:
        return lambda _: None
    return lambda mix: set_limits(lab, as_lab_host(host, mix.hosts[index]))
