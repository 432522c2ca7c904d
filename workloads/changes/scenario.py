"""A scenario: how a cluster changes while a job runs. Links slow down, neighbours take cores, devices throttle.

A scenario file states what changes when, in steps or in seconds of training. Positions count from the start of each trainer,
so interleaved contenders of one job have the same changes at the same point of their training. Changes take effect
between steps. The state at a position is a `Cluster`, so code that reads a cluster also reads a changing one.
"""

from __future__ import annotations

import dataclasses
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.errors import SpecError

ALL = "*"
_LARGEST_STEP = 0.5
"""Of a random walk, in powers of two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The course of one quantity of some hosts or ranks: set at positions, or a separate random walk for each of them."""

    what: str
    """"bandwidth" and "cpus" are a host's, "speed" is a rank's."""
    target: str
    """Name or number of a host, number of a rank, or "*" for all."""
    points: tuple[tuple[float, float], ...] = ()
    """Positions and values."""
    is_fraction: bool = True
    """Values are shares of what the cluster file states; else bytes/s or cores."""
    walk: Walk | None = None

    def points_of(self, index: int) -> tuple[tuple[float, float], ...]:
        """The points for host or rank number `index`."""
        return self.points if self.walk is None else tuple(self.walk.points(index))


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """A seeded random walk within bounds, from the upper one."""

    seed: int
    every: float
    until: float
    low: float
    high: float

    def points(self, index: int) -> Iterator[tuple[float, float]]:
        generator = random.Random(f"{self.seed}/{index}")  # noqa: S311 - a script, not a secret
        value, moment = self.high, 0.0
        while moment < self.until:
            yield moment, value
            value *= 2 ** generator.uniform(-_LARGEST_STEP, _LARGEST_STEP)
            if not self.low <= value <= self.high:  # reflected at the bound
                bound = self.low if value < self.low else self.high
                value = min(max(bound * bound / value, self.low), self.high)
            moment += self.every


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A script of changes."""

    name: str
    courses: tuple[Course, ...] = ()
    clock: str = "step"
    """Positions are steps, or seconds of training."""
    period: float | None = None
    """The scenario repeats after this long; None: the last state stays."""
    description: str = ""


class ChangingCluster:
    """A cluster under a scenario. Refuses a scenario that names what the cluster does not have or cannot change."""

    def __init__(self, cluster: Cluster, scenario: Scenario) -> None:
        self.cluster, self.scenario = cluster, scenario
        events = sorted(_events(cluster, scenario), key=lambda event: event[0])
        self.moments: list[float] = []
        self._clusters = [cluster]
        for moment, changes in groupby(events, key=lambda event: event[0]):
            current = self._clusters[-1]
            for _, course, index, value in changes:
                current = _changed(current, cluster, course, index, value)
            self.moments.append(moment)
            self._clusters.append(current)

    def course(self, steps_s: Sequence[float]) -> list[Cluster]:
        """The cluster in each of these steps of one run."""
        started_s = [0.0, *accumulate(steps_s)][: len(steps_s)]
        return [self.at(step if self.scenario.clock == "step" else began) for step, began in enumerate(started_s)]

    def at(self, position: float) -> Cluster:
        """The cluster at a position of the scenario."""
        if self.scenario.period is not None:
            position %= self.scenario.period
        return self._clusters[bisect_right(self.moments, position)]


def _events(cluster: Cluster, scenario: Scenario) -> Iterator[tuple[float, Course, int, float]]:
    for course in scenario.courses:
        _check_can_change(cluster, scenario, course)
        for index in _targets(cluster, scenario, course):
            yield from ((moment, course, index, value) for moment, value in course.points_of(index))


def _targets(cluster: Cluster, scenario: Scenario, course: Course) -> list[int]:
    """Indices of the hosts or ranks of a course."""
    names = [str(rank) for rank in range(len(cluster.devices))]
    if course.what != "speed":
        names = [host.name for host in cluster.hosts]
    if course.target == ALL:
        return list(range(len(names)))
    if course.target in names:
        return [names.index(course.target)]
    if course.target.isdigit() and int(course.target) < len(names):
        return [int(course.target)]
    owner = "rank" if course.what == "speed" else "host"
    raise SpecError(
        f"scenario {scenario.name!r} changes {owner} {course.target!r}, but cluster {cluster.name!r} has "
        f"{len(names)} {owner}s: {', '.join(names[:8])}"
    )


def _check_can_change(cluster: Cluster, scenario: Scenario, course: Course) -> None:
    reason = ""
    if course.what == "speed" and not cluster.is_emulated:
        reason = "whose devices are real: only paced devices change speed (in a lab, change cpus)"
    if course.what == "cpus" and not cluster.in_lab:
        reason = "which is no lab: start the job with `autotune lab run`, or change the speed of paced devices"
    if course.what == "bandwidth" and not (cluster.paces_links or cluster.in_lab):
        reason = "whose links are real: only paced links and those of a lab change"
    if course.what == "bandwidth" and not reason and any(host.link is None for host in cluster.hosts):
        reason = "where a host states no uplink and downlink: state them"
    if reason:
        raise SpecError(f"scenario {scenario.name!r} changes the {course.what} of {cluster.name!r}, {reason}")


def _changed(current: Cluster, stated: Cluster, course: Course, index: int, value: float) -> Cluster:
    """The cluster with one quantity changed; shares are of the stated value, not of the current one."""
    if course.what == "speed":
        return _with_device(current, index, at_speed(stated.devices[index], value))
    host, link = current.hosts[index], stated.hosts[index].link
    if course.what == "cpus":
        return _with_host(current, index, dataclasses.replace(host, cpus=value))
    assert link is not None
    up, down = (link.up_bytes_per_s * value, link.down_bytes_per_s * value) if course.is_fraction else (value, value)
    changed = Link(up_bytes_per_s=up, down_bytes_per_s=down, latency_s=link.latency_s)
    return _with_host(current, index, dataclasses.replace(host, link=changed))


def at_speed(device: Device, factor: float) -> Device:
    """A paced device that is so many times as fast."""
    assert device.flops_per_s is not None
    memory = device.memory_bytes_per_s
    return dataclasses.replace(
        device,
        flops_per_s=device.flops_per_s * factor,
        memory_bytes_per_s=None if memory is None else memory * factor,
        launch_s=device.launch_s / factor,
    )


def _with_host(current: Cluster, index: int, host: Host) -> Cluster:
    return dataclasses.replace(current, hosts=(*current.hosts[:index], host, *current.hosts[index + 1 :]))


def _with_device(current: Cluster, rank: int, device: Device) -> Cluster:
    index = current.host_of_rank[rank]
    host = current.hosts[index]
    place = rank - current.host_of_rank.index(index)
    devices = (*host.devices[:place], device, *host.devices[place + 1 :])
    return _with_host(current, index, dataclasses.replace(host, devices=devices))
