"""The limits of a lab host: a token bucket per direction and a CPU quota. Set at creation, changed by a scenario."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import replace
from pathlib import Path

from autotune.lab.hosts import Lab, LabHost
from autotune.workloads.cluster import Host

_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_CGROUP_V2 = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
MTU = 9000
_LOOPBACK_PACKET = 1 << 16


def set_limits(lab: Lab, host: LabHost) -> None:
    """Set bandwidth and cores of `host`: the uplink at its interface, the downlink at the switch port, loopback as its fabric."""
    if host.link is not None:
        _limit(lab.namespace(host), "eth0", host.link.up_bytes_per_s)
        _limit(lab.switch, lab.port(host), host.link.down_bytes_per_s)
    if host.inside_bytes_per_s is not None:
        _limit(lab.namespace(host), "lo", host.inside_bytes_per_s, packet=_LOOPBACK_PACKET)
    _set_quota(cpu_group(lab, host), host.cpus)


def own_host(lab: Lab) -> LabHost | None:
    """The host of the lab that this process runs on."""
    return next((host for host in lab.hosts if host.name == socket.gethostname()), None)


def as_lab_host(host: LabHost, now: Host) -> LabHost:
    """`host` with the limits of a cluster file."""
    return replace(host, link=now.link, cpus=now.cpus)


def cpu_group(lab: Lab, host: LabHost) -> Path:
    """The control group of a host's processes."""
    return lab_group(lab) / host.name


def lab_group(lab: Lab) -> Path:
    """The control group of the whole lab."""
    root = _CGROUP_V1 if (_CGROUP_V1 / "cpu.cfs_quota_us").exists() else _CGROUP_V2
    return root / lab.prefix.rstrip("-")


def run_tool(*command: str, text: str | None = None) -> str:
    """Run a system command; returns its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 - our own commands
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _limit(namespace: str, device: str, bytes_per_s: float, packet: int = MTU) -> None:
    """A token bucket: bursts of two milliseconds, at least four packets."""
    burst = max(int(bytes_per_s * 0.002), 4 * packet)
    bucket = f"rate {int(bytes_per_s * 8)}bit burst {burst} latency 50ms"
    run_tool("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *bucket.split())


def _set_quota(group: Path, cpus: float | None) -> None:
    quota = -1 if cpus is None else int(cpus * _PERIOD_US)
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    elif (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{'max' if cpus is None else quota} {_PERIOD_US}")
    elif cpus is not None:
        raise RuntimeError(f"{group}: the kernel has no CPU quota here")
