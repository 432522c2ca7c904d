"""Creates and removes a lab: network namespaces, veth pairs into a bridge, token buckets, control groups.

Each host is a namespace, connected by a veth pair to a bridge in another namespace, which is the switch. The
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
from autotune.lab.limits import MTU, cpu_group, lab_group, run_tool, set_limits
from autotune.workloads.errors import MissingDependencyError, SpecError

_KILL_S = 5.0


def check_possible() -> None:
    """A lab needs Linux, root and iproute2."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SpecError("a lab needs Linux and root: run it as root, or use paced emulation, which needs neither")
    if missing := [tool for tool in ("ip", "tc", "nsenter", "unshare") if shutil.which(tool) is None]:
        raise MissingDependencyError(f"a lab needs {', '.join(missing)}: install the packages iproute2 and util-linux")


def build(lab: Lab) -> None:
    """Create all resources; the caller has removed leftovers."""
    run_tool("ip", "netns", "add", lab.switch)
    _batch(lab.switch, ["link add br0 type bridge", f"link set br0 mtu {MTU} up"])
    for host in lab.hosts:
        _add_host(lab, host)


def _add_host(lab: Lab, host: LabHost) -> None:
    namespace, port = lab.namespace(host), lab.port(host)
    run_tool("ip", "netns", "add", namespace)
    _batch(lab.switch, [f"link add {port} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {namespace}"])
    _batch(lab.switch, [f"link set {port} master br0 up"])
    address = f"addr add {lab.address(host)}/24 dev eth0"
    _batch(namespace, ["link set lo up", address, "link set eth0 up"])
    cpu_group(lab, host).mkdir(parents=True, exist_ok=True)
    set_limits(lab, host)


def clear(lab: Lab) -> None:
    """Remove all resources with the lab's name, also those of a killed `up`; no others."""
    for namespace in namespaces(lab):
        _end_processes(namespace)
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)  # noqa: S603, S607 - it may be gone
    parent = lab_group(lab)
    for group in sorted(parent.glob("*/")):
        if (group / "cgroup.procs").exists():
            _remove_group(group)
    if parent.exists():
        _remove_group(parent)
    shutil.rmtree(lab.folder, ignore_errors=True)


def namespaces(lab: Lab) -> list[str]:
    """The namespaces of the lab that exist."""
    names = [line.split()[0] for line in run_tool("ip", "netns", "list").splitlines() if line.strip()]
    return [name for name in names if name.startswith(lab.prefix)]


def processes(lab: Lab) -> list[int]:
    """Processes in the lab's namespaces."""
    return [int(pid) for namespace in namespaces(lab) for pid in run_tool("ip", "netns", "pids", namespace).split()]


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
    run_tool("ip", "-n", namespace, "-batch", "-", text="\n".join(commands) + "\n")
