"""The simulator check: the simulated gain of every candidate, for jobs with a cost model.

The simulator runs with the device speeds of the window and the links of the last link probe. On simulated data it ranks
plans better than the meta-network (docs/online.md). The two predictions are averaged, and their difference adds to the
spread. A check of all candidates takes some milliseconds and runs only after a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autotune.online.background import yielding
from autotune.online.meta_network import GainEstimate
from autotune.online.simulated_steps import simulated_step
from autotune.online.window import Window
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.changes.scenario import at_speed
from autotune.workloads.cluster import Cluster, Device
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.workload import PLAIN_LOOP, Loop

_ALIKE = 0.02
"""Log speed ratio below which devices count as unchanged."""


class SimulatorCheck:
    """The simulator of one job with stated device speeds."""

    def __init__(self, info: WorkloadInfo, graph: OpGraph, loop: Loop = PLAIN_LOOP) -> None:
        self._info, self._graph, self._loop = info, graph, loop

    def gains(self, plans: Sequence[Plan], seen: Window, cluster: Cluster) -> list[float]:
        """log(throughput / throughput of the running plan), of each plan."""
        simulator = self._simulator(self.as_seen(cluster, seen))
        now_s = simulator.step_s(seen.plan)
        return [math.log(now_s / simulator.step_s(plan)) for plan in yielding(plans)]

    def as_seen(self, cluster: Cluster, seen: Window) -> Cluster:
        """The cluster with the device speeds of the window."""
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
        """Compile the simulator before its first use."""
        self._simulator(cluster).step_s(plan)

    def _simulator(self, cluster: Cluster) -> Simulator:
        return Simulator(self._info, self._graph, cost_model(self._graph, cluster), loop=self._loop)


def _next(devices: Iterator[Device], count: int) -> tuple[Device, ...]:
    return tuple(next(devices) for _ in range(count))


def averaged(estimate: GainEstimate, gains: Sequence[float]) -> GainEstimate:
    """The mean of both predictions; their difference adds to the spread."""
    other = np.asarray(gains, np.float64)
    return replace(
        estimate,
        mean=(estimate.mean + other) / 2,
        spread=estimate.spread / 2 + np.abs(estimate.mean - other) / 2,
    )
