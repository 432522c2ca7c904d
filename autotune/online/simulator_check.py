"""What the simulator thinks of candidates, where there is a cost model: devices as fast as the window shows, links as last looked at.

On simulated data it orders plans better than the meta-network, whose guesses it is averaged with (docs/online.md); where the two
disagree, that is a doubt. It takes some milliseconds for all candidates, and is asked only when something has changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autotune.online.background import unhurried
from autotune.online.meta_network import Guess
from autotune.online.simulated_steps import simulated_step
from autotune.online.window import Window
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.scenario import at_speed
from autotune.workloads.workload import PLAIN_LOOP, Loop

_ALIKE = 0.02
"""Devices that are off by less are as the cost model has them."""


class SecondOpinion:
    """Of one job, whose devices' speeds are stated."""

    def __init__(self, info: WorkloadInfo, graph: OpGraph, loop: Loop = PLAIN_LOOP) -> None:
        self._info, self._graph, self._loop = info, graph, loop

    def gains(self, plans: Sequence[Plan], seen: Window, cluster: Cluster) -> list[float]:
        """log(throughput / throughput of what runs) of each plan."""
        simulator = self._simulator(self.as_seen(cluster, seen))
        now_s = simulator.step_s(seen.plan)
        return [math.log(now_s / simulator.step_s(plan)) for plan in unhurried(plans)]

    def as_seen(self, cluster: Cluster, seen: Window) -> Cluster:
        """The mix with devices that compute as long as the window shows."""
        simulator, plan = self._simulator(cluster), seen.plan
        expected = simulated_step(simulator.simulate(plan), plan, simulator.wire_bytes(plan))
        speeds = [
            step.compute_s / rank.compute_s if rank.compute_s > 0 and step.compute_s > 0 else 1.0
            for step, rank in zip(expected, seen.ranks, strict=True)
        ]
        if all(abs(math.log(speed)) < _ALIKE for speed in speeds):
            return cluster
        devices = iter([at_speed(device, speed) for device, speed in zip(cluster.devices, speeds, strict=True)])
        hosts = tuple(replace(host, devices=_next(devices, len(host.devices))) for host in cluster.hosts)
        return replace(cluster, hosts=hosts)

    def warm_up(self, plan: Plan, cluster: Cluster) -> None:
        """Have everything compiled before anybody waits for it."""
        self._simulator(cluster).step_s(plan)

    def _simulator(self, cluster: Cluster) -> Simulator:
        return Simulator(self._info, self._graph, cost_model(self._graph, cluster), loop=self._loop)


def _next(devices: Iterator[Device], count: int) -> tuple[Device, ...]:
    return tuple(next(devices) for _ in range(count))


def averaged(guess: Guess, gains: Sequence[float]) -> Guess:
    """Both opinions; how far they are apart adds to the doubt."""
    other = np.asarray(gains, np.float64)
    return replace(guess, mean=(guess.mean + other) / 2, spread=guess.spread / 2 + np.abs(guess.mean - other) / 2)
