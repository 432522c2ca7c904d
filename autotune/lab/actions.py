"""The commands `autotune lab up|run|status|down`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Any

from autotune.lab import kernel, manage
from autotune.lab.hosts import Lab, check_lab_name, lab_of, load_lab
from autotune.runtime.launch.mpirun import become
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.quantity import format_bandwidth
from autotune.workloads.serial import to_data


def up(cluster: str, name: str, *, as_json: bool) -> int:
    lab = lab_of(load_cluster(cluster), name)
    begun = time.monotonic()
    manage.up(lab)
    if as_json:
        _write(json.dumps(to_data(lab)))
    else:
        _write(f"lab {name!r} is up: {len(lab.hosts)} hosts in {time.monotonic() - begun:.1f} s\n{_describe(lab)}")
        _write(f"run a job:  autotune lab run --name {name} -- autotune sweep --workload vgg --cluster {cluster}")
        _write(f"remove it:  autotune lab down --name {name}")
    return 0


def run(name: str, command: list[str]) -> int:
    """Replace this process by the job; returns only if it cannot start."""
    if not command:
        raise SpecError(
            "lab run has no command: write one after --, such as lab run -- autotune sweep --workload vgg …"
        )
    kernel.check_possible()
    lab = load_lab(check_lab_name(name))
    started = manage.run_command(lab, command)
    if not kernel.processes(lab):
        manage.restore(lab)
    sys.stderr.write(f"+ {shlex.join(started)}\n")
    become(started)


def status(_name: str, *, as_json: bool) -> int:
    """Every lab that is up."""
    labs = [load_lab(name) for name in manage.names()]
    if as_json:
        _write(json.dumps([to_data(lab) for lab in labs]))
    elif not labs:
        _write("no lab is up")
    for lab in [] if as_json else labs:
        _write(f"lab {lab.name!r} ({lab.cluster}), {len(kernel.processes(lab))} processes\n{_describe(lab)}")
    return 0


def down(name: str, *, as_json: bool) -> int:
    existed = manage.down(Lab(name=check_lab_name(name)))
    _write(json.dumps({"removed": existed}) if as_json else f"lab {name!r} {'is gone' if existed else 'was not up'}")
    return 0


def _describe(lab: Lab) -> str:
    lines = []
    for host in lab.hosts:
        link = "unlimited"
        if host.link is not None:
            link = (
                f"up {format_bandwidth(host.link.up_bytes_per_s)}, down {format_bandwidth(host.link.down_bytes_per_s)}"
            )
        cpus = "all cores" if host.cpus is None else f"{host.cpus:g} cores"
        lines.append(f"  {host.name:12} {lab.address(host):12} {host.num_ranks} ranks, {link}, {cpus}")
    return "\n".join(lines)


def _write(text: Any) -> None:
    sys.stdout.write(f"{text}\n")
