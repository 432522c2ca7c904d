"""`autotune init`: a cluster file from what is found: the hosts of the MPI job (or this one), their devices, NICs and GPU links.

Without mpirun it loads neither torch nor MPI. Speeds of links are nominal, as drivers report them; `--measure` replaces them by
those of the link probes of `autotune profile`. What is not known stays unstated: such a link is free in predictions, and a
note in the file says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.offline import write
from autotune.cli.terminal import console
from autotune.profilers.gpu_links import islands
from autotune.profilers.machine import Machine, fastest_nics, find_machine
from autotune.results.store.environment import processor_name
from autotune.results.text.cluster_text import cluster_toml, cluster_tree
from autotune.runtime.control.start import this_launcher
from autotune.runtime.launch.launcher import LauncherKind
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.errors import SpecError, StoreError
from autotune.workloads.serial import from_data, to_data
from autotune.workloads.topology import Fabric, Link

if TYPE_CHECKING:
    from autotune.cli.on_ranks import Launch
    from autotune.jobs.job import ProfileJob
    from autotune.runtime.control.mpi import Control


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A cluster, and what could not be found out."""

    cluster: Cluster
    notes: tuple[str, ...]


def init(file: Path, job: ProfileJob, launch: Launch, *, measure: bool) -> int:
    """Write `file` and show the tree; returns the exit code."""
    is_rank = this_launcher().kind is not LauncherKind.NONE
    if not is_rank:
        check_file(file)
    if launch.num_ranks is None and not is_rank:
        if measure:
            raise SpecError("--measure times messages between ranks: start it with --ranks N, or with mpirun")
        machine = _this_machine()
        _keep(found_cluster([machine] * max(len(machine.gpus), 1), file.stem), file, as_json=launch.as_json)
        return 0
    from autotune.cli.on_ranks import run_on_ranks  # noqa: PLC0415 - loads MPI

    def body(_: tuple[Cluster, ...], control: Control) -> None:
        _check_on_rank_0(file, control)
        shared = control.share(to_data(_this_machine()))
        found = found_cluster([from_data(Machine, machine, "a machine") for machine in shared], file.stem)
        if measure:
            found = _measured(found, job, control)
        if control.is_leader:
            _keep(found, file, as_json=launch.as_json)

    return run_on_ranks(job, launch, body)


def _this_machine() -> Machine:
    """Devices have the names under which jobs find them, so that a profile of the cluster is found as well."""
    return replace(find_machine(), processor=processor_name())


def check_file(file: Path) -> None:
    """Refuse what could not be written, before anything is measured."""
    if file.suffix != ".toml":
        raise SpecError(f"--output {str(file)!r}: a cluster file ends in .toml")
    if file.exists():
        raise SpecError(f"{str(file)!r} exists: name another file with --output, or remove it")
    if not file.parent.is_dir():
        raise SpecError(f"--output {str(file)!r}: there is no folder {str(file.parent)!r}: make it, or name another")


def _check_on_rank_0(file: Path, control: Control) -> None:
    """On rank 0, whose file system it is. All ranks refuse, and leave, together."""
    from autotune.jobs.context import AgreedError  # noqa: PLC0415 - loads torch

    message = ""
    if control.is_leader:
        try:
            check_file(file)
        except SpecError as error:
            message = str(error)
    if message := control.broadcast(message):
        raise AgreedError(message, SpecError.exit_code)


def found_cluster(machines: Sequence[Machine], name: str) -> Found:
    """A host for each machine; `machines`: of each rank."""
    by_host: dict[str, Machine] = {}
    count: dict[str, int] = {}
    for machine in machines:
        by_host.setdefault(machine.host, machine)
        count[machine.host] = count.get(machine.host, 0) + 1
    notes = []
    order = [machine.host for machine in machines]
    if order != sorted(order, key=list(by_host).index):
        notes.append(
            "ranks alternate between hosts, but a cluster numbers them host by host: start jobs with --map-by slot"
        )
    hosts = []
    for machine in by_host.values():
        host, unknown = _host(machine, count[machine.host], is_alone=len(by_host) == 1)
        hosts.append(host)
        notes += unknown
    if any(device.flops_per_s is None for host in hosts for device in host.devices):
        notes.append("no speed of a device is stated: measure them with `autotune profile`, or state flops")
    return Found(cluster=Cluster(name=name, hosts=tuple(hosts)), notes=tuple(dict.fromkeys(notes)))


def _host(machine: Machine, num_ranks: int, *, is_alone: bool) -> tuple[Host, list[str]]:
    """The first GPUs, one for each rank; without as many, a CPU for each."""
    notes = []
    gpus = machine.gpus[:num_ranks] if len(machine.gpus) >= num_ranks else ()
    if machine.gpus and not gpus:
        notes.append(f"{machine.host} has {len(machine.gpus)} GPUs for {num_ranks} ranks: its ranks are taken for CPUs")
    devices = tuple(Device(name=gpu.name, memory_bytes=gpu.memory_bytes) for gpu in gpus)
    nics = fastest_nics(machine)
    if not nics and not is_alone:
        notes.append(f"{machine.host} reports no speed of its network: use --measure, or state uplink and downlink")
    num_nics = max(min(len(nics), num_ranks), 1)
    joined, island_speed = islands(gpus)
    pcie = [gpu.pcie_bytes_per_s for gpu in gpus]
    known = [speed for speed in pcie if speed is not None]
    fabric = Fabric(
        device=_both(min(known)) if known and len(known) == len(pcie) else None,
        islands=joined,
        island=_both(island_speed) if island_speed else None,
    )
    host = Host(
        name=machine.host,
        devices=devices or (Device(name=machine.processor),) * num_ranks,
        link=_both(sum(nic.bytes_per_s for nic in nics[:num_nics])) if nics else None,
        nic_of_device=tuple(place * num_nics // num_ranks for place in range(num_ranks)) if num_nics > 1 else (),
        fabric=fabric if num_ranks > 1 and fabric != Fabric() else None,
    )
    return host, notes


def _measured(found: Found, job: ProfileJob, control: Control) -> Found:
    """With the links that messages between ranks show, where any do; islands stay as they are reported."""
    from autotune.jobs.context import set_up  # noqa: PLC0415 - loads torch
    from autotune.jobs.network_profile import Network, host_links, measure_links  # noqa: PLC0415
    from autotune.jobs.profile import hosts_of_ranks  # noqa: PLC0415
    from autotune.results.store.profile import Profile  # noqa: PLC0415
    from autotune.simulate.link_sources import with_links  # noqa: PLC0415

    context = set_up(job, found.cluster, control)
    names = hosts_of_ranks(context.cluster, control.share(find_machine().host))
    links = measure_links(Network(context=context, control=control, hosts=names, timeout_s=job.timeout_s))
    context.runner.close()
    profile = Profile(
        workload="", cluster=found.cluster.name, label="measured", ranks=(), links=links, hosts=host_links(links)
    )
    return Found(
        cluster=with_measured(found.cluster, with_links(unstated(found.cluster), [profile])), notes=found.notes
    )


def unstated(cluster: Cluster) -> Cluster:
    """Without links, so that measured ones are taken."""
    return replace(cluster, hosts=tuple(replace(host, link=None, fabric=None) for host in cluster.hosts))


def with_measured(nominal: Cluster, measured: Cluster) -> Cluster:
    """Measured links where there are any. A fabric with islands stays: one pair of a host was measured, not each kind."""
    hosts = tuple(
        replace(
            old,
            link=_rounded(new.link) or old.link,
            fabric=old.fabric if old.fabric is not None and old.fabric.islands else _inside(new) or old.fabric,
        )
        for old, new in zip(nominal.hosts, measured.hosts, strict=True)
    )
    pairs = tuple(replace(pair, link=_slower(pair.link)) for pair in measured.pairs)
    return replace(nominal, hosts=hosts, pairs=pairs)


def _inside(host: Host) -> Fabric | None:
    return None if host.fabric is None else replace(host.fabric, device=_rounded(host.fabric.device))


def _slower(link: Link) -> Link:
    """A file states one bandwidth for both directions of a pair: the smaller one."""
    return _both(float(f"{min(link.up_bytes_per_s, link.down_bytes_per_s):.3g}"))


def _rounded(link: Link | None) -> Link | None:
    """To three digits: a measurement has no more."""
    if link is None:
        return None
    up, down, latency_s = (float(f"{v:.3g}") for v in (link.up_bytes_per_s, link.down_bytes_per_s, link.latency_s))
    return Link(up_bytes_per_s=up, down_bytes_per_s=down, latency_s=latency_s)


def _keep(found: Found, file: Path, *, as_json: bool) -> None:
    try:
        file.write_text(cluster_toml(found.cluster, found.notes), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {str(file)!r}: {error.strerror}: name another file with --output") from error
    if as_json:
        data = {"file": str(file), "tree": cluster_tree(found.cluster), "notes": found.notes}
        write(to_data(data))
        return
    from rich.text import Text  # noqa: PLC0415 - not needed for JSON

    from autotune.results.show.cluster_console import show_tree  # noqa: PLC0415

    screen = console()
    show_tree(screen, cluster_tree(found.cluster))
    for note in found.notes:
        screen.print(Text(f"not known: {note}", style="yellow"), soft_wrap=True)
    screen.print(Text(f"written to {file}: autotune profile --cluster {file} measures the rest"), soft_wrap=True)


def _both(bytes_per_s: float) -> Link:
    return Link(up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s)
