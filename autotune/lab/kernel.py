"""Make a lab and take it apart: network namespaces, veth pairs into a bridge, token buckets, control groups.

Each host has a namespace of its own, joined by a veth pair to a bridge in a namespace that stands for the switch. The
uplink is limited where the host sends, the downlink where the switch port sends. CPU quotas are control groups, which
also throttle the network stack: use pacing for slow accelerators and quotas for slow CPUs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune.lab.hosts import Lab, LabHost
from workloads.errors import MissingDependencyError, SpecError

_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_CGROUP_V2 = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
_MTU = 9000
_KILL_S = 5.0


def check_possible() -> None:
    """A lab needs Linux, root and iproute2."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SpecError("a lab needs Linux and root: run it as root, or use paced emulation, which needs neither")
    if missing := [tool for tool in ("ip", "tc", "nsenter", "unshare") if shutil.which(tool) is None]:
        raise MissingDependencyError(f"a lab needs {', '.join(missing)}: install the packages iproute2 and util-linux")


def build(lab: Lab) -> None:
    """Make everything; the caller has cleared what was there."""
    _run("ip", "netns", "add", lab.switch)
    _batch(lab.switch, ["link add br0 type bridge", f"link set br0 mtu {_MTU} up"])
    for host in lab.hosts:
        _add_host(lab, host)


def _add_host(lab: Lab, host: LabHost) -> None:
    namespace, port = lab.namespace(host), f"port{host.index}"
    _run("ip", "netns", "add", namespace)
    _batch(lab.switch, [f"link add {port} mtu {_MTU} type veth peer name eth0 mtu {_MTU} netns {namespace}"])
    _batch(lab.switch, [f"link set {port} master br0 up"])
    address = f"addr add {lab.address(host)}/24 dev eth0"
    _batch(namespace, ["link set lo up", address, "link set eth0 up"])
    if host.link is not None:
        _limit(namespace, "eth0", host.link.up_bytes_per_s)
        _limit(lab.switch, port, host.link.down_bytes_per_s)
    group = cpu_group(lab, host)
    group.mkdir(parents=True, exist_ok=True)
    if host.cpus is not None:
        _set_quota(group, host.cpus)


def _limit(namespace: str, device: str, bytes_per_s: float) -> None:
    """A token bucket: what may burst is two milliseconds' worth, at least four packets."""
    burst = max(int(bytes_per_s * 0.002), 4 * _MTU)
    rate = f"{int(bytes_per_s * 8)}bit"
    _run(
        "tc",
        "-n",
        namespace,
        "qdisc",
        "replace",
        "dev",
        device,
        "root",
        "tbf",
        "rate",
        rate,
        "burst",
        str(burst),
        "latency",
        "50ms",
    )


def cpu_group(lab: Lab, host: LabHost) -> Path:
    """The control group of a host's processes."""
    return _groups_root() / lab.prefix.rstrip("-") / host.name


def _groups_root() -> Path:
    return _CGROUP_V1 if (_CGROUP_V1 / "cpu.cfs_quota_us").exists() else _CGROUP_V2


def _set_quota(group: Path, cpus: float) -> None:
    quota = int(cpus * _PERIOD_US)
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")


def clear(lab: Lab) -> None:
    """Remove everything that carries the lab's name, also what a killed `up` left half made; nothing else."""
    for namespace in namespaces(lab):
        _end_processes(namespace)
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)  # noqa: S603, S607 - it may be gone
    parent = _groups_root() / lab.prefix.rstrip("-")
    for group in sorted(parent.glob("*/")):
        if (group / "cgroup.procs").exists():
            _remove_group(group)
    if parent.exists():
        _remove_group(parent)
    shutil.rmtree(lab.folder, ignore_errors=True)


def namespaces(lab: Lab) -> list[str]:
    """Those of the lab that exist."""
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]
    return [name for name in names if name.startswith(lab.prefix)]


def processes(lab: Lab) -> list[int]:
    """Processes that live in the lab's namespaces."""
    return [int(pid) for namespace in namespaces(lab) for pid in _run("ip", "netns", "pids", namespace).split()]


def _end_processes(namespace: str) -> None:
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        answer = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)  # noqa: S603, S607
        if not (pids := answer.stdout.split()):
            return
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def _remove_group(group: Path) -> None:
    """A group can be removed once its last process is reaped."""
    deadline = time.monotonic() + _KILL_S
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _batch(namespace: str, commands: list[str]) -> None:
    """Several `ip` commands in one namespace, in one process."""
    _run("ip", "-n", namespace, "-batch", "-", text="\n".join(commands) + "\n")


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 - our own commands
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
