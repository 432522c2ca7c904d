"""A scenario as it is replayed: before each step, this rank's surroundings become what the scenario says.

Paced devices and links are told their new speeds. In a lab, the first rank of each host changes the host's real limits.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.workloads.cluster import Cluster, Device
from autotune.workloads.scenario import ChangingCluster


class Replay:
    """What a scenario does to one rank. `set_surroundings` hears of every change, and once more when a trial ends."""

    def __init__(self, changing: ChangingCluster, rank: int, set_surroundings: Callable[[Cluster], None]) -> None:
        self._changing = changing
        self._rank = rank
        self._set_surroundings = set_surroundings
        self._now = changing.cluster

    def enter(self, *, num_steps: int, trained_s: float) -> Device:
        """A trainer that has come this far starts a step; this rank's device in it."""
        self._become(self._changing.at(num_steps if self._changing.scenario.clock == "step" else trained_s))
        return self._now.devices[self._rank]

    def leave(self) -> None:
        """As the cluster file says again."""
        self._become(self._changing.cluster)

    def _become(self, cluster: Cluster) -> None:
        if cluster is not self._now:
            self._set_surroundings(cluster)
            self._now = cluster
