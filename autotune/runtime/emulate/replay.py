"""The replay of a scenario: before each step, the device and the links of this rank get the speeds of the scenario.

Paced devices and links are set to their new speeds. In a lab, the first rank of each host changes the host's real limits.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.cluster import Cluster, Device


class Replay:
    """The replay on one rank. It calls `set_surroundings` with every change, and once more when a trial ends."""

    def __init__(self, changing: ChangingCluster, rank: int, set_surroundings: Callable[[Cluster], None]) -> None:
        self._changing = changing
        self._rank = rank
        self._set_surroundings = set_surroundings
        self._now = changing.cluster

    def enter(self, *, num_steps: int, trained_s: float) -> Device:
        """Called when a trainer starts a step; the device of this rank in it. `trained_s`: seconds of training so far."""
        self._become(self._changing.at(num_steps if self._changing.scenario.clock == "step" else trained_s))
        return self._now.devices[self._rank]

    def leave(self) -> None:
        """Restore the cluster as in its file."""
        self._become(self._changing.cluster)

    def _become(self, cluster: Cluster) -> None:
        if cluster is not self._now:
            self._set_surroundings(cluster)
            self._now = cluster
