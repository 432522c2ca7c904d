"""What everything costs on one mix: ops, data, updates, codecs, collectives, memory. Every number knows its source.

A device that was profiled, here or elsewhere, costs what its profile says; a device whose speed is only stated costs what
the datasheet says (autotune.simulate.cost); of a device of which nothing is known nothing is predicted. What a collective
takes beyond the bytes on its links (software, memory copies, waking up) is taken from the profile's measured sizes, so
that a prediction for other links keeps the overhead and exchanges the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.simulate.collectives import all_reduce_latency_s, all_reduce_rounds, ring_loads
from autotune.simulate.cost import compute_s
from autotune.simulate.data_parallel import pass_seconds
from autotune.simulate.engine import Floats
from results.fits import Fit, Source, TransferFit, WorkFit
from results.forecast import Origin
from results.profile import CollectiveProfile, Profile, RankProfile
from workloads.cluster import Cluster, Device, Host, Link
from workloads.errors import SpecError
from workloads.graph import Op, OpGraph

DATASHEET = "datasheet"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTimes:
    """Seconds of a pass over b samples: max(arithmetic·b, fixed + per_sample·b) + launch. Rows are ranks, columns ops."""

    arithmetic_s: Floats
    fixed_s: Floats
    per_sample_s: Floats
    launch_s: Floats

    def seconds(self, samples: Floats) -> Floats:
        taken: Floats = pass_seconds(self.arithmetic_s, self.fixed_s, self.per_sample_s, self.launch_s, samples)
        return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """fixed + slope · x, one line a rank."""

    fixed_s: Floats
    slope_s: Floats

    def at(self, x: Floats) -> Floats:
        taken: Floats = self.fixed_s + self.slope_s * x
        return taken

    def table(self, x: Floats) -> Floats:
        """Every rank at every x."""
        taken: Floats = self.fixed_s[:, None] + self.slope_s[:, None] * x[None, :]
        return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportCosts:
    """An all-reduce over one transport beyond what its bytes take on the links."""

    sizes: Floats
    overhead_s: Floats
    """At each of the sizes; between them a line, beyond them the slope of the last two."""
    slots: int = 1
    """Collectives that the transport carries out at once."""

    def overhead(self, num_bytes: Floats) -> Floats:
        inside: Floats = np.interp(num_bytes, self.sizes, self.overhead_s)
        if len(self.sizes) < 2:
            return inside
        slope = (self.overhead_s[-1] - self.overhead_s[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond: Floats = np.maximum(num_bytes - self.sizes[-1], 0.0)
        return inside + max(float(slope), 0.0) * beyond


NO_OVERHEAD = TransportCosts(sizes=np.zeros(1), overhead_s=np.zeros(1))
SLOTS = {"gloo": 2, "mpi": 1, "nccl": 1}
"""Collectives at once: gloo has two threads, our MPI transport one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All costs of one workload on one mix."""

    cluster: Cluster
    forward: OpTimes
    backward: OpTimes
    whole: Lines | None
    """Forward and backward of the whole model where all ranks were profiled. Ops are measured with probes, one by one, and
    their errors add up; steps are measured without: an op's line says which share of the step is its own."""
    data: Lines
    update: Lines
    encode: Mapping[str, Lines]
    decode: Mapping[str, Lines]
    transports: Mapping[str, TransportCosts]
    origins: tuple[Origin, ...]
    ranges: tuple[tuple[float, float], ...]
    """Per rank: samples at which its device was measured."""
    memory_fixed_bytes: tuple[float | None, ...] = ()
    """Per rank, as metered: what is held however few the samples. None: not measured."""
    links_in_turn: bool = True
    """Emulated links serve one transfer after another; real ones share their bandwidth."""
    notes: tuple[str, ...] = field(default=())

    def passes(self, samples: Floats) -> tuple[Floats, Floats]:
        """Seconds of every op on every rank, forward and backward."""
        forward_s, backward_s = self.forward.seconds(samples), self.backward.seconds(samples)
        if self.whole is None:
            return forward_s, backward_s
        total = forward_s.sum(axis=1) + backward_s.sum(axis=1)
        scale = (self.whole.at(samples) / np.where(total > 0, total, 1.0))[:, None]
        return forward_s * scale, backward_s * scale

    def doubts(self, samples: Sequence[int]) -> list[str]:
        """Where a prediction for this split leaves what was measured."""
        beyond = [
            f"rank {rank}: {count} samples, measured from {low:g} to {high:g}"
            for rank, (count, (low, high)) in enumerate(zip(samples, self.ranges, strict=True))
            if count and not low <= count <= high
        ]
        return [*self.notes, *beyond]


def cost_model(graph: OpGraph, cluster: Cluster, profiles: Sequence[Profile] = ()) -> Costs:
    """The costs of `graph` on `cluster`, from these profiles where they know its devices, else as the mix states."""
    ranks = [_find(profiles, rank, device) for rank, device in enumerate(cluster.devices)]
    _refuse_unknown(cluster, ranks)
    hosts = tuple(_with_link(host, profiles) for host in cluster.hosts)
    linked = replace(cluster, hosts=hosts)
    passes = [
        [_op_line(op, device, profile, backward=backward) for op in graph.ops]
        for backward in (False, True)
        for device, profile in zip(cluster.devices, ranks, strict=True)
    ]
    size = len(ranks)
    transports, transport_origins, notes = _transports(linked, profiles)
    codecs = sorted(
        {codec.name for profile in ranks if profile is not None for codec in getattr(profile, "codecs", ())}
    )
    return Costs(
        cluster=linked,
        forward=_op_times(passes[:size]),
        backward=_op_times(passes[size:]),
        whole=_whole(graph, cluster, ranks),
        data=_lines([profile.data if profile else None for profile in _filled(ranks)]),
        update=_lines([profile.optimizer if profile else None for profile in _filled(ranks)]),
        encode={name: _codec_lines(_filled(ranks), name, "encode") for name in codecs},
        decode={name: _codec_lines(_filled(ranks), name, "decode") for name in codecs},
        transports=transports,
        origins=(*_device_origins(cluster, ranks, profiles), *_link_origins(cluster, hosts), *transport_origins),
        ranges=tuple((profile.compute.low, profile.compute.high) if profile else (0.0, np.inf) for profile in ranks),
        memory_fixed_bytes=tuple(
            profile.memory.fixed_bytes if profile and profile.memory else None for profile in ranks
        ),
        links_in_turn=cluster.paces_links,
        notes=notes,
    )


def _find(profiles: Sequence[Profile], rank: int, device: Device) -> RankProfile | None:
    """The profile of this rank's device: of the same rank if it is of that device, else of any such device."""
    same = [entry for profile in profiles for entry in profile.ranks if entry.device == device.name]
    return next((entry for entry in same if entry.rank == rank), same[0] if same else None)


def _refuse_unknown(cluster: Cluster, ranks: Sequence[RankProfile | None]) -> None:
    for rank, (device, profile) in enumerate(zip(cluster.devices, ranks, strict=True)):
        if profile is None and device.flops_per_s is None:
            raise SpecError(
                f"nothing is known of device {device.name!r} of rank {rank} on {cluster.name!r}: measure it with "
                "`mpirun -n N autotune profile`, name a profile with --profile, or state its flops in the cluster file"
            )


def _filled(ranks: Sequence[RankProfile | None]) -> list[RankProfile | None]:
    """For what is not the device's own doing (data, update, codecs): a rank without a profile is taken like another's."""
    other = next((profile for profile in ranks if profile is not None), None)
    return [profile or other for profile in ranks]


def _op_line(
    op: Op, device: Device, profile: RankProfile | None, *, backward: bool
) -> tuple[float, float, float, float]:
    """arithmetic, fixed, per sample, launch."""
    measured = profile.op(op.name) if profile is not None else None
    if profile is not None:
        if measured is None:
            raise SpecError(
                f"the profile of device {profile.device!r} has no op {op.name!r}: it is of another model; profile this one"
            )
        fit = measured.backward if backward else measured.forward
        return 0.0, fit.fixed_s, fit.per_sample_s, 0.0
    factor = op.backward_factor if backward else 1.0
    if factor == 0:
        return 0.0, 0.0, 0.0, 0.0
    assert device.flops_per_s is not None
    traffic = factor / device.memory_bytes_per_s if device.memory_bytes_per_s else 0.0
    return (
        factor * op.flops_per_sample / device.flops_per_s,
        traffic * op.fixed_bytes,
        traffic * op.bytes_per_sample,
        device.launch_s * op.num_calls,
    )


def _op_times(rows: list[list[tuple[float, float, float, float]]]) -> OpTimes:
    values = np.array(rows, np.float64).reshape(len(rows), -1, 4)
    arithmetic, fixed, per_sample, launch = (np.ascontiguousarray(values[:, :, part]) for part in range(4))
    return OpTimes(arithmetic_s=arithmetic, fixed_s=fixed, per_sample_s=per_sample, launch_s=launch)


def _whole(graph: OpGraph, cluster: Cluster, ranks: Sequence[RankProfile | None]) -> Lines | None:
    """Of a rank without a profile, what its datasheet says at two sizes."""
    if all(profile is None for profile in ranks):
        return None
    fits = [
        profile.compute if profile is not None else _stated_line(graph, device)
        for device, profile in zip(cluster.devices, ranks, strict=True)
    ]
    return _lines(fits)


def _stated_line(graph: OpGraph, device: Device) -> WorkFit:
    few, many = 16, 64
    low_s, high_s = (compute_s(graph, device, count) for count in (few, many))
    slope = (high_s - low_s) / (many - few)
    return WorkFit(
        fixed_s=max(low_s - few * slope, 0.0), per_sample_s=slope, source=Source.DATASHEET, low=few, high=many
    )


def _lines(fits: Sequence[WorkFit | None]) -> Lines:
    return Lines(
        fixed_s=np.array([fit.fixed_s if fit else 0.0 for fit in fits]),
        slope_s=np.array([fit.per_sample_s if fit else 0.0 for fit in fits]),
    )


def _codec_lines(ranks: Sequence[RankProfile | None], name: str, side: str) -> Lines:
    fits: list[TransferFit | None] = [
        next((getattr(codec, side) for codec in getattr(rank, "codecs", ()) if codec.name == name), None)
        for rank in ranks
    ]
    return Lines(
        fixed_s=np.array([fit.latency_s if fit else 0.0 for fit in fits]),
        slope_s=np.array([1 / fit.bytes_per_s if fit and fit.bytes_per_s else 0.0 for fit in fits]),
    )


def _with_link(host: Host, profiles: Sequence[Profile]) -> Host:
    """A host whose link is not stated takes the one that was measured."""
    if host.link is not None:
        return host
    for profile in profiles:
        for found in profile.hosts:
            if found.host == host.name and found.up_bytes_per_s and found.down_bytes_per_s:
                link = Link(
                    up_bytes_per_s=found.up_bytes_per_s,
                    down_bytes_per_s=found.down_bytes_per_s,
                    latency_s=found.latency_s,
                )
                return Host(name=host.name, devices=host.devices, link=link, cpus=host.cpus)
    return host


def _transports(
    cluster: Cluster, profiles: Sequence[Profile]
) -> tuple[dict[str, TransportCosts], list[Origin], tuple[str, ...]]:
    found: dict[str, TransportCosts] = {}
    origins, notes = [], []
    for profile in profiles:
        for measured in profile.collectives:
            if measured.kind != "all-reduce" or measured.transport in found:
                continue
            found[measured.transport] = _transport(measured, profile, cluster)
            what = f"all-reduce over {measured.transport}"
            source = f"measured on {measured.num_ranks} ranks of {profile.cluster} ({profile.label})"
            origins.append(Origin(what=what, source=source, low=measured.fit.low, high=measured.fit.high))
            if measured.num_ranks != len(cluster.devices):
                notes.append(f"{what}: measured on {measured.num_ranks} ranks, predicted for {len(cluster.devices)}")
    if not found:
        origins.append(Origin(what="all-reduce", source=f"{DATASHEET}: bytes over links, no software"))
    return found, origins, tuple(notes)


def _transport(measured: CollectiveProfile, profile: Profile, cluster: Cluster) -> TransportCosts:
    """What was measured, less what the bytes take on the links that it was measured on."""
    rows: list[tuple[float, float]] = [(row.num_bytes, row.seconds) for row in measured.rows]
    if not rows:
        rows = [(size, measured.fit.seconds(size)) for size in (measured.fit.low, measured.fit.high)]
    per_byte = _link_s_per_byte(profile, cluster)
    latency_s = max((host.latency_s for host in profile.hosts), default=0.0) if not cluster.paces_links else 0.0
    if cluster.paces_links:
        latency_s = all_reduce_latency_s("ring", cluster) / max(all_reduce_rounds("ring", len(cluster.devices)), 1)
    rounds = all_reduce_rounds("ring", measured.num_ranks)
    wanted = all_reduce_rounds("ring", len(cluster.devices)) / rounds if rounds else 1.0
    overhead = [
        max(seconds - size * per_byte - (rounds * latency_s if cluster.paces_links else 0.0), 0.0)
        for size, seconds in rows
    ]
    return TransportCosts(
        sizes=np.array([size for size, _ in rows], np.float64),
        overhead_s=np.array(overhead) * wanted,
        slots=SLOTS.get(measured.transport, 1),
    )


def _link_s_per_byte(profile: Profile, cluster: Cluster) -> float:
    """Seconds that a byte of a ring takes on the tightest link of the mix that was profiled."""
    speeds = {host.host: (host.up_bytes_per_s, host.down_bytes_per_s) for host in profile.hosts}
    stated = {host.name: host.link for host in cluster.hosts if host.link is not None}
    names = list(dict.fromkeys(rank.host for rank in profile.ranks))
    order = [names.index(rank.host) for rank in profile.ranks]
    slowest = 0.0
    if len(names) < 2:
        return 0.0
    for load in ring_loads(order, 1.0):
        name = names[load.host]
        link = stated.get(name) if profile.cluster_fingerprint == cluster.fingerprint() else None
        up, down = (link.up_bytes_per_s, link.down_bytes_per_s) if link else speeds.get(name, (None, None))
        for num_bytes, speed in ((load.up_bytes, up), (load.down_bytes, down)):
            if speed:
                slowest = max(slowest, num_bytes / speed)
    return slowest


def _device_origins(cluster: Cluster, ranks: Sequence[RankProfile | None], profiles: Sequence[Profile]) -> list[Origin]:
    labels = {id(entry): profile.label for profile in profiles for entry in profile.ranks}
    origins: dict[str, Origin] = {}
    for device, profile in zip(cluster.devices, ranks, strict=True):
        if profile is None:
            origins[device.name] = Origin(what=f"device {device.name}", source=DATASHEET)
        else:
            fit: Fit = profile.compute
            source = f"{fit.source.value} ({labels[id(profile)]})"
            origins[device.name] = Origin(what=f"device {device.name}", source=source, low=fit.low, high=fit.high)
    return list(origins.values())


def _link_origins(cluster: Cluster, hosts: Sequence[Host]) -> list[Origin]:
    if len(hosts) < 2:
        return []
    stated = sum(host.link is not None for host in cluster.hosts)
    measured = sum(host.link is not None for host in hosts) - stated
    parts = [f"{stated} stated in the cluster file"] * bool(stated) + [f"{measured} measured"] * bool(measured)
    return [Origin(what="links", source=", ".join(parts) or "none: messages are free")]
