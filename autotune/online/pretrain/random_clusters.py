"""Random clusters for pre-training: 2 to 8 ranks with unequal speeds and links.

Two bands of link speeds and two numbers of ranks are held out from training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from autotune.online.pretrain.random_models import log_uniform
from autotune.workloads.cluster import Cluster, Device, Host, Link

MBIT = 1e6 / 8
HELD_OUT_BANDS = ((200 * MBIT, 400 * MBIT), (4000 * MBIT, 8000 * MBIT))
HELD_OUT_SIZES = (5, 7)
SLOWEST, FASTEST = 50 * MBIT, 25_000 * MBIT


def draw_rank_counts(draw: random.Random, *, held_out: bool) -> list[int]:
    """The number of ranks of each host, of at least two hosts."""
    sizes = HELD_OUT_SIZES if held_out else [n for n in range(2, 9) if n not in HELD_OUT_SIZES]
    num_ranks = draw.choice(sizes)
    if draw.random() < 0.7:
        return [1] * num_ranks
    first = draw.randint(1, num_ranks - 1)
    return [first, num_ranks - first]


def draw_cluster(draw: random.Random, counts: list[int], *, held_out: bool) -> Cluster:
    """Hosts with unequal links, and perhaps one host with a much slower link."""
    usual, latency_s = _link_speed(draw, held_out=held_out), log_uniform(draw, 5e-6, 2e-3)
    spread = draw.choice((0.0, 0.0, 0.5, 1.0))
    uneven = draw.random() < 0.5
    odd = draw.randrange(len(counts))
    slower = log_uniform(draw, 1.5, 8) if draw.random() < 0.5 else 1.0
    hosts = []
    for index, count in enumerate(counts):
        speed = usual / (slower if index == odd else 1.0) * (math.exp(draw.gauss(0, 0.3)) if uneven else 1.0)
        devices = tuple(
            Device(
                name=f"device{index}-{number}",
                flops_per_s=(flops := 1e12 * math.exp(draw.gauss(0, spread / 2))),
                memory_bytes_per_s=flops / draw.uniform(1, 20),
            )
            for number in range(count)
        )
        link = Link(up_bytes_per_s=speed, down_bytes_per_s=speed * draw.choice((1.0, 1.0, 0.5)), latency_s=latency_s)
        hosts.append(Host(name=f"host{index}", devices=devices, link=link))
    return Cluster(name="random", hosts=tuple(hosts), emulation=draw.choice(("paced", "none")))


def with_device_speeds(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with all device speeds multiplied by a factor."""
    hosts = tuple(
        replace(host, devices=tuple(_with_speed(device, factor) for device in host.devices)) for host in cluster.hosts
    )
    return replace(cluster, hosts=hosts)


def with_link_factors(cluster: Cluster, factors: Sequence[float]) -> Cluster:
    """The cluster with the bandwidth of each host's link multiplied by its factor."""
    links = [
        replace(
            link_of(host),
            up_bytes_per_s=link_of(host).up_bytes_per_s * factor,
            down_bytes_per_s=link_of(host).down_bytes_per_s * factor,
        )
        for host, factor in zip(cluster.hosts, factors, strict=True)
    ]
    return _with_links(cluster, links)


def with_link_speed(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """The cluster with equal links of one bandwidth; latencies stay."""
    links = [replace(link_of(host), up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s) for host in cluster.hosts]
    return _with_links(cluster, links)


def link_of(host: Host) -> Link:
    """The link of a host of a random cluster: every host has one."""
    assert host.link is not None
    return host.link


def _with_links(cluster: Cluster, links: Sequence[Link]) -> Cluster:
    hosts = tuple(replace(host, link=link) for host, link in zip(cluster.hosts, links, strict=True))
    return replace(cluster, hosts=hosts)


def _with_speed(device: Device, factor: float) -> Device:
    assert device.flops_per_s is not None
    assert device.memory_bytes_per_s is not None
    return replace(
        device,
        flops_per_s=device.flops_per_s * factor,
        memory_bytes_per_s=device.memory_bytes_per_s * factor,
    )


def _link_speed(draw: random.Random, *, held_out: bool) -> float:
    if held_out:
        return log_uniform(draw, *draw.choice(HELD_OUT_BANDS))
    while True:
        speed = log_uniform(draw, SLOWEST, FASTEST)
        if not any(low <= speed <= high for low, high in HELD_OUT_BANDS):
            return speed
