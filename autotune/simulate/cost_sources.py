"""Costs from their sources: profiles, measured on this cluster or another, and datasheets. Every cost records its origin.

A profiled device costs what its profile measured. A device with a stated speed costs what the roofline of its datasheet
gives (`autotune.simulate.roofline`). A device with neither is an error. The overhead of a collective beyond the bytes on
its links (software, memory copies, wake-ups) is the measured time minus the link time, so a prediction for other
links keeps the overhead and replaces the link time. What each of several all-reduces in flight adds to the time of one
is paid one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.results.store.fits import Fit, Source, TransferFit, WorkFit
from autotune.results.store.forecast import Origin
from autotune.results.store.profile import CollectiveProfile, Profile, RankProfile
from autotune.simulate.collectives import all_reduce_latency_s, num_messages, sum_phases
from autotune.simulate.cost_tables import Costs, Lines, OpTimes, PassTimes, Points, ShardedTimes, TransportCosts
from autotune.simulate.link_sources import profiled_cluster, with_links
from autotune.simulate.roofline import OpLine, compute_s, stated_line
from autotune.workloads.cluster import Cluster, Device
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.plan import COLLECTIVES, TRANSPORTS, CommPlan
from autotune.workloads.plan.choices import HIERARCHICAL

DATASHEET = "datasheet"
_PAIR = 2


def cost_model(graph: OpGraph, cluster: Cluster, profiles: Sequence[Profile] = ()) -> Costs:
    """The costs of `graph` on `cluster`, from these profiles where they have its devices, else as the cluster file states."""
    ranks = [_find(profiles, rank, device) for rank, device in enumerate(cluster.devices)]
    _refuse_unknown(cluster, ranks)
    linked = with_links(cluster, profiles)
    times = _pass_times(graph, cluster, ranks)
    all_reduces = _all_reduces(linked, profiles)
    codecs = sorted({codec.name for profile in ranks if profile is not None for codec in profile.codecs})
    return Costs(
        cluster=linked,
        forward=times.forward,
        backward=times.backward,
        whole=times.whole,
        data=_lines([profile.data if profile else None for profile in _filled(ranks)]),
        update=_lines([profile.optimizer if profile else None for profile in _filled(ranks)]),
        encode={name: _codec_lines(_filled(ranks), name, "encode") for name in codecs},
        decode={name: _codec_lines(_filled(ranks), name, "decode") for name in codecs},
        transports=all_reduces.own,
        made_of_messages=all_reduces.made_of_messages,
        origins=(*_device_origins(cluster, ranks, profiles), *_link_origins(cluster, linked), *all_reduces.origins),
        ranges=tuple((profile.compute.low, profile.compute.high) if profile else (0.0, np.inf) for profile in ranks),
        memory_fixed_bytes=tuple(
            profile.memory.fixed_bytes if profile and profile.memory else None for profile in ranks
        ),
        serialized_links=cluster.paces_links,
        sharded=_sharded(graph, cluster, ranks),
        notes=tuple(all_reduces.notes),
    )


def _find(profiles: Sequence[Profile], rank: int, device: Device) -> RankProfile | None:
    """The profile of a device of this name: of the same rank if there is one, else of any rank."""
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
    """For costs that do not depend on the device (data, update, codecs): a rank without a profile takes another rank's."""
    other = next((profile for profile in ranks if profile is not None), None)
    return [profile or other for profile in ranks]


def _op_line(op: Op, device: Device, profile: RankProfile | None, *, backward: bool) -> OpLine:
    """As measured where the device has a profile, else as stated."""
    if profile is None:
        return stated_line(op, device, backward=backward)
    measured = profile.op(op.name)
    if measured is None:
        raise SpecError(
            f"the profile of device {profile.device!r} has no op {op.name!r}: it is of another model; profile this one"
        )
    fit = measured.backward if backward else measured.forward
    return OpLine(arithmetic_s=0.0, fixed_s=fit.fixed_s, per_sample_s=fit.per_sample_s, launch_s=0.0)


def _pass_times(graph: OpGraph, cluster: Cluster, ranks: Sequence[RankProfile | None]) -> PassTimes:
    devices = list(zip(cluster.devices, ranks, strict=True))

    def times(*, backward: bool) -> OpTimes:
        made: dict[tuple[Device, int], list[OpLine]] = {}  # ranks of one kind are alike
        for device, profile in devices:
            if (device, id(profile)) not in made:
                made[device, id(profile)] = [_op_line(op, device, profile, backward=backward) for op in graph.ops]
        rows = [made[device, id(profile)] for device, profile in devices]
        fits = [[_fit(profile, op, backward=backward) for op in graph.ops] for profile in ranks]
        return replace(_op_times(rows), points=_points(fits))

    return PassTimes(forward=times(backward=False), backward=times(backward=True), whole=_whole(graph, cluster, ranks))


def _fit(profile: RankProfile | None, op: Op, *, backward: bool) -> WorkFit | None:
    if profile is None or (measured := profile.op(op.name)) is None:
        return None
    return measured.backward if backward else measured.forward


def _sharded(graph: OpGraph, cluster: Cluster, ranks: Sequence[RankProfile | None]) -> dict[int, ShardedTimes]:
    """The degrees of tensor parallelism that were measured on some rank."""
    degrees = {one.degree for profile in ranks if profile is not None for one in profile.sharded}
    found = {}
    for degree in sorted(degrees):
        shared = [profile and profile.shared_by(degree) for profile in ranks]
        profiles = [
            replace(profile, compute=one.compute, ops=one.ops) if profile and one else profile
            for profile, one in zip(ranks, shared, strict=True)
        ]
        found[degree] = ShardedTimes(
            times=_pass_times(graph, cluster, profiles),
            is_measured=tuple(one is not None for one in shared),
            includes_sums=all(one.includes_sums for one in shared if one),
        )
    return found


def _points(fits: Sequence[Sequence[WorkFit | None]]) -> Points | None:
    """The measured points of the ops (columns) of each rank, where its ops have the same ones."""
    if all(fit is None or not fit.points for row in fits for fit in row):
        return None
    rows = []
    for row in fits:
        points = [sorted(fit.points) if fit is not None else [] for fit in row]
        samples = [x for x, _ in points[0]] if points else []
        same = len(set(samples)) == len(samples) and all([x for x, _ in one] == samples for one in points)
        rows.append((samples, [[y for _, y in one] for one in points]) if same else ([], []))
    most = max((len(samples) for samples, _ in rows), default=0)
    if most == 0:
        return None
    columns = len(fits[0])
    found = Points(
        num=np.array([len(samples) for samples, _ in rows], np.int64),
        samples=np.zeros((len(rows), most)),
        seconds=np.zeros((len(rows), columns, most)),
    )
    for rank, (samples, seconds) in enumerate(rows):
        if samples:
            found.samples[rank, : len(samples)] = samples
            found.seconds[rank, :, : len(samples)] = seconds
    return found


def _op_times(rows: list[list[OpLine]]) -> OpTimes:
    values = np.array(rows, np.float64).reshape(len(rows), -1, 4)
    arithmetic, fixed, per_sample, launch = (np.ascontiguousarray(values[:, :, part]) for part in range(4))
    return OpTimes(arithmetic_s=arithmetic, fixed_s=fixed, per_sample_s=per_sample, launch_s=launch)


def _whole(graph: OpGraph, cluster: Cluster, ranks: Sequence[RankProfile | None]) -> Lines | None:
    """A rank without a profile takes the line through two points of its roofline."""
    if all(profile is None for profile in ranks):
        return None
    fits = [
        profile.compute if profile is not None else _stated_line(graph, device)
        for device, profile in zip(cluster.devices, ranks, strict=True)
    ]
    return replace(_lines(fits), points=_points([[fit] for fit in fits]))


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
    codecs = [rank.codec(name) if rank is not None else None for rank in ranks]
    fits: list[TransferFit | None] = [getattr(codec, side) if codec is not None else None for codec in codecs]
    return Lines(
        fixed_s=np.array([fit.latency_s if fit else 0.0 for fit in fits]),
        slope_s=np.array([1 / fit.bytes_per_s if fit and fit.bytes_per_s else 0.0 for fit in fits]),
    )


@dataclass(slots=True)
class _AllReduces:
    """What all-reduces cost beyond their bytes, and where that comes from."""

    own: dict[str, TransportCosts] = field(default_factory=dict)
    """By transport: its own."""
    made_of_messages: dict[tuple[str, str], TransportCosts] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _all_reduces(cluster: Cluster, profiles: Sequence[Profile]) -> _AllReduces:
    found = _AllReduces()
    for profile in profiles:
        for measured in profile.collectives:
            key = measured.transport, measured.collective
            if measured.kind != "all-reduce" or measured.collective not in COLLECTIVES:
                continue
            if measured.collective != "ring":
                found.made_of_messages.setdefault(key, _transport(measured, profile, cluster))
            elif measured.transport not in found.own:
                found.own[measured.transport] = _transport(measured, profile, cluster)
                what = f"all-reduce over {measured.transport}"
                source = f"measured on {measured.num_ranks} ranks of {profile.cluster} ({profile.label})"
                fit = measured.fit
                found.origins.append(
                    Origin(what=what, source=source, low=fit.low, high=fit.high, worst_error=fit.worst_error)
                )
                if measured.num_ranks != len(cluster.devices):
                    found.notes.append(
                        f"{what}: measured on {measured.num_ranks} ranks, predicted for {len(cluster.devices)}"
                    )
    if not found.own:
        found.origins.append(Origin(what="all-reduce", source=f"{DATASHEET}: bytes over links, no software"))
        found.notes.append(
            "what a message costs beyond its bytes: small buckets look better than they are; `autotune profile` measures it"
        )
    return found


def _transport(measured: CollectiveProfile, profile: Profile, cluster: Cluster) -> TransportCosts:
    """The measured time minus the time of bytes and rounds on the links: a prediction adds those of the links of `cluster`."""
    rows: list[tuple[float, float]] = [(row.num_bytes, row.seconds) for row in measured.rows]
    if not rows:
        rows = [(size, measured.fit.seconds(size)) for size in (measured.fit.low, measured.fit.high)]
    kind, profiled = measured.collective, profiled_cluster(profile, cluster)
    hosts = [rank.host for rank in profile.ranks] if kind in HIERARCHICAL else range(measured.num_ranks)
    then, now = num_messages(kind, hosts), num_messages(kind, cluster.host_of_rank)
    # A measured latency includes software: subtract no more of it than the links of `cluster` add again.
    latency_s = min(_round_s(kind, profiled, then), _round_s(kind, cluster, now)) * then
    scale, per_byte_s = now / then if then else 1.0, _link_s_per_byte(kind, profiled)
    overhead = [max(seconds - size * per_byte_s - latency_s, 0.0) for size, seconds in rows]
    alone_s, several = dict(rows), measured.num_in_flight
    serial = [
        (row.num_bytes, max(row.seconds * several - alone_s[row.num_bytes], 0.0) / (several - 1))
        for row in measured.in_flight
        if row.num_bytes in alone_s and several > 1
    ]
    return TransportCosts(
        sizes=np.array([size for size, _ in rows], np.float64),
        overhead_s=np.array(overhead) * scale,
        slots=TRANSPORTS[measured.transport].num_slots if measured.transport in TRANSPORTS else 1,
        serial_sizes=np.array([size for size, _ in serial], np.float64),
        serial_s=np.array([seconds for _, seconds in serial]) * scale,
    )


def _round_s(kind: str, cluster: Cluster, messages: int) -> float:
    return all_reduce_latency_s(kind, cluster) / messages if messages else 0.0


def _link_s_per_byte(kind: str, cluster: Cluster) -> float:
    """Seconds that a byte takes on the tightest link of each phase."""
    return sum(cluster.topology.busy_s(phase) for phase in sum_phases(CommPlan(collective=kind), cluster, 1.0))


def _device_origins(cluster: Cluster, ranks: Sequence[RankProfile | None], profiles: Sequence[Profile]) -> list[Origin]:
    labels = {id(entry): profile.label for profile in profiles for entry in profile.ranks}
    origins: dict[str, Origin] = {}
    for device, profile in zip(cluster.devices, ranks, strict=True):
        if profile is None:
            origins[device.name] = Origin(what=f"device {device.name}", source=DATASHEET)
        else:
            fit: Fit = profile.compute
            source = f"{fit.source.value} ({labels[id(profile)]})"
            origins[device.name] = Origin(
                what=f"device {device.name}", source=source, low=fit.low, high=fit.high, worst_error=fit.worst_error
            )
    return list(origins.values())


def _link_origins(cluster: Cluster, linked: Cluster) -> list[Origin]:
    inside = sum(
        new.fabric is not None and old.fabric is None for old, new in zip(cluster.hosts, linked.hosts, strict=True)
    )
    pairs = len(linked.pairs) - len(cluster.pairs)
    if len(cluster.hosts) < _PAIR and not inside:
        return []
    stated = sum(host.link is not None for host in cluster.hosts)
    measured = sum(host.link is not None for host in linked.hosts) - stated
    parts = [f"{stated} stated in the cluster file"] * bool(stated) + [f"{measured} measured"] * bool(measured)
    parts += [f"inside {inside} hosts measured"] * bool(inside) + [
        f"{pairs} pairs slower than their hosts measured"
    ] * bool(pairs)
    return [Origin(what="links", source=", ".join(parts) or "none: messages are free")]
