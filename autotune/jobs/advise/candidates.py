"""Changes of a cluster that are worth a question, where the user asks for none in particular."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.workloads.changes.cluster_edits import Setting
from autotune.workloads.cluster import Cluster, Host

Edits = tuple[str, ...]
"""Edits that belong to one change."""


def usual_changes(setting: Setting) -> list[Edits]:
    """One more device of each kind, a host less, the slowest replaced by the fastest, faster and slower links."""
    found = [*_more(setting), *_fewer(setting.cluster), *_replaced(setting), *_links(setting.cluster)]
    return [(edit,) for edit in dict.fromkeys(found)]


def as_edits(changes: Sequence[str]) -> list[Edits]:
    """Changes as the user writes them: "add=fast, bandwidth*2" is one of two edits."""
    return [tuple(edit.strip() for edit in change.split(",")) for change in changes]


def _more(setting: Setting) -> Iterator[str]:
    yield from (f"add={name}" for name in setting.kinds)


def _fewer(cluster: Cluster) -> Iterator[str]:
    if len(cluster.hosts) > 1:
        last = {_kind_of(host): host.name for host in cluster.hosts}
        yield from (f"remove={name}" for name in last.values())


def _replaced(setting: Setting) -> Iterator[str]:
    """Where speeds are stated: of profiled devices the user names the replacement."""
    speeds = {name: device.flops_per_s for name, (_, device) in setting.kinds.items() if device.flops_per_s}
    if len(speeds) < len(setting.kinds):
        return
    fastest = max(speeds, key=lambda name: speeds[name] or 0.0)
    slowest = min(setting.cluster.hosts, key=lambda host: min(device.flops_per_s or 0.0 for device in host.devices))
    if any(device.name != fastest for device in slowest.devices):
        yield f"replace={slowest.name}:{fastest}"


def _links(cluster: Cluster) -> Iterator[str]:
    speeds = {host.name: host.link.up_bytes_per_s for host in cluster.hosts if host.link is not None}
    if len(cluster.hosts) < 2 or not speeds:
        return
    yield "bandwidth*2"
    yield "bandwidth*0.5"
    slowest = min(speeds, key=lambda name: speeds[name])
    if speeds[slowest] < max(speeds.values()):
        yield f"bandwidth.{slowest}*{max(speeds.values()) / speeds[slowest]:g}"


def _kind_of(host: Host) -> tuple[object, ...]:
    return (tuple(device.name for device in host.devices), host.link, host.fabric, host.rack)
