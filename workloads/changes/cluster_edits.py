"""Edits of a cluster for what-if questions: twice the bandwidth, one more fast device, another batch.

bandwidth*2                every host's uplink and downlink
bandwidth.host3=1 Gbit/s   one host's
latency*10                 likewise, also latency.host3=1 ms
speed.rank0*1.5            one device; speed*2 for all, speed.full*2 for all of a kind
add=full                   one more host like the first with a device of that kind, of the cluster or of a pool of others
remove=host3               a host less
replace=host3:full         a host whose devices are all of that kind, at the same place in the network
batch=128                  another global batch
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.workloads.cluster import Cluster, Device, Host, Link, with_devices
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.quantity import BYTES_PER_S, SECONDS, parse_quantity

_EDIT = re.compile(
    r"(?P<what>bandwidth|latency|speed|add|remove|replace|batch)(?:\.(?P<where>[^*=]+))?(?P<how>[*=])(?P<value>.+)"
)
_EXAMPLES = (
    "bandwidth*2, bandwidth.host3=1 Gbit/s, speed.rank0*2, add=NAME, remove=host3, replace=host3:NAME, batch=128"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The cluster and the batch of a question."""

    cluster: Cluster
    global_batch: int
    pool: Cluster | None = None
    """Further hosts, whose devices can be added."""

    @property
    def kinds(self) -> dict[str, tuple[Host, Device]]:
        """Every kind of device with the first host that has one; those of the cluster before those of the pool."""
        hosts = (*self.cluster.hosts, *(self.pool.hosts if self.pool is not None else ()))
        return {device.name: (host, device) for host in reversed(hosts) for device in host.devices}


def edited(setting: Setting, edits: Sequence[str]) -> Setting:
    """The setting after all edits, in order."""
    for edit in edits:
        match = _EDIT.fullmatch(edit.strip())
        if match is None:
            raise SpecError(f"--what-if {edit!r} is no edit: write one such as {_EXAMPLES}")
        setting = _EDITS[match["what"]](setting, match["where"], match["how"], match["value"].strip(), edit)
    name = f"{setting.cluster.name} with {', '.join(edits)}" if edits else setting.cluster.name
    return replace(setting, cluster=replace(setting.cluster, name=name))


def _bandwidth(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    def change(link: Link) -> Link:
        if how == "*":
            factor = _factor(value, edit)
            return replace(
                link, up_bytes_per_s=link.up_bytes_per_s * factor, down_bytes_per_s=link.down_bytes_per_s * factor
            )
        speed = parse_quantity(value, BYTES_PER_S, f"--what-if {edit!r}")
        return replace(link, up_bytes_per_s=speed, down_bytes_per_s=speed)

    return _change_links(setting, where, change, edit)


def _latency(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    def change(link: Link) -> Link:
        latency_s = (
            link.latency_s * _factor(value, edit)
            if how == "*"
            else parse_quantity(value, SECONDS, f"--what-if {edit!r}")
        )
        return replace(link, latency_s=latency_s)

    return _change_links(setting, where, change, edit)


def _change_links(setting: Setting, where: str | None, change: Callable[[Link], Link], edit: str) -> Setting:
    names = [host.name for host in setting.cluster.hosts]
    if where is not None and where not in names:
        raise unknown_name(f"host in --what-if {edit!r}:", where, names)
    if all(host.link is None for host in setting.cluster.hosts if where in (None, host.name)):
        raise SpecError(f"--what-if {edit!r}: cluster {setting.cluster.name!r} states no such link; add it to its file")
    hosts = tuple(
        replace(host, link=change(host.link)) if host.link is not None and where in (None, host.name) else host
        for host in setting.cluster.hosts
    )
    return replace(setting, cluster=replace(setting.cluster, hosts=hosts))


def _speed(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    if how != "*":
        raise SpecError(f"--what-if {edit!r}: a speed is multiplied, such as speed.rank0*2")
    factor, rank = _factor(value, edit), 0
    known = {device.name for device in setting.cluster.devices} | {
        f"rank{number}" for number in range(len(setting.cluster.devices))
    }
    if where is not None and where not in known:
        raise unknown_name(f"rank or device in --what-if {edit!r}:", where, sorted(known))
    hosts = []
    for host in setting.cluster.hosts:
        devices = []
        for device in host.devices:
            chosen = where in (None, device.name, f"rank{rank}")
            devices.append(_faster(device, factor, edit) if chosen else device)
            rank += 1
        hosts.append(replace(host, devices=tuple(devices)))
    return replace(setting, cluster=replace(setting.cluster, hosts=tuple(hosts)))


def _faster(device: Device, factor: float, edit: str) -> Device:
    """With a name of its own, which no profile has."""
    if device.flops_per_s is None:
        raise SpecError(
            f"--what-if {edit!r}: device {device.name!r} states no speed; state its flops in the cluster file"
        )
    return replace(
        device,
        name=f"{device.name}*{factor:g}",
        flops_per_s=device.flops_per_s * factor,
        memory_bytes_per_s=device.memory_bytes_per_s * factor if device.memory_bytes_per_s else None,
        launch_s=device.launch_s / factor,
    )


def _add(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    host, device = _kind(setting, value if where is None and how == "=" else "", edit)
    names = {other.name for other in setting.cluster.hosts}
    name = next(f"host{number}" for number in range(len(names), 2 * len(names) + 1) if f"host{number}" not in names)
    rack = host.rack if host.rack in {rack.name for rack in setting.cluster.racks} else ""
    hosts = (*setting.cluster.hosts, replace(with_devices(host, [0]), name=name, devices=(device,), rack=rack))
    return replace(setting, cluster=replace(setting.cluster, hosts=hosts))


def _kind(setting: Setting, name: str, edit: str) -> tuple[Host, Device]:
    if name not in setting.kinds:
        raise unknown_name(f"device in --what-if {edit!r}:", name, setting.kinds)
    return setting.kinds[name]


def _replace(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    host_name, colon, kind = value.partition(":")
    names = [host.name for host in setting.cluster.hosts]
    if where is not None or how != "=" or not colon:
        raise SpecError(f"--what-if {edit!r}: name a host and a device, such as replace=host3:fast")
    if host_name not in names:
        raise unknown_name(f"host in --what-if {edit!r}:", host_name, names)
    _, device = _kind(setting, kind, edit)
    hosts = tuple(
        replace(host, devices=(device,) * len(host.devices)) if host.name == host_name else host
        for host in setting.cluster.hosts
    )
    return replace(setting, cluster=replace(setting.cluster, hosts=hosts))


def _remove(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    names = [host.name for host in setting.cluster.hosts]
    if where is not None or how != "=" or value not in names:
        raise unknown_name(f"host in --what-if {edit!r}:", value, names)
    ranks = [rank for rank, host in enumerate(setting.cluster.host_of_rank) if names[host] != value]
    if not ranks:
        raise SpecError(f"--what-if {edit!r} leaves no host: a cluster needs one")
    return replace(setting, cluster=setting.cluster.part(ranks))


def _batch(setting: Setting, where: str | None, how: str, value: str, edit: str) -> Setting:
    if where is not None or how != "=" or not value.isdigit() or int(value) < 1:
        raise SpecError(f"--what-if {edit!r}: a batch is a whole number from 1, such as batch=128")
    return replace(setting, global_batch=int(value))


def _factor(value: str, edit: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise SpecError(f"--what-if {edit!r}: {value!r} is no factor above zero")
    return factor


_EDITS: dict[str, Callable[[Setting, str | None, str, str, str], Setting]] = {
    "bandwidth": _bandwidth,
    "latency": _latency,
    "speed": _speed,
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "batch": _batch,
}
