"""A Slurm step as its environment describes it: rank, size, hosts, and a port that follows from job and step.

A batch script has a SLURM_PROCID as well, but no step of `srun`: it is a process on its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.workloads.errors import SpecError

RANK, SIZE = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
JOB, STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
_FIRST_PORT, _NUM_PORTS = 16384, 16384
"""Below the ports that Linux hands out by itself (32768 and up)."""
_SPREAD = 31
_LAST_STEP = 0xFFFFFFF0
"""Slurm's numbers of steps that no `srun` made: batch script, interactive shell, external step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One process of a step."""

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    hosts: str
    """In Slurm's short form."""
    num_hosts: int
    name: str
    """Job, step and number of restarts."""
    port: int


def is_step(environment: Mapping[str, str]) -> bool:
    """Whether `srun` has started the process as one of several."""
    return _has_step(environment) and environment.get(SIZE) != "1"


def is_alone(environment: Mapping[str, str]) -> bool:
    """Whether `srun` has started one process: the shell of `srun --pty`, from which launchers may be started."""
    return _has_step(environment) and environment.get(SIZE) == "1"


def _has_step(environment: Mapping[str, str]) -> bool:
    step = environment.get(STEP, "")
    return step.isdigit() and int(step) < _LAST_STEP and environment.get(RANK, "").isdigit()


def step_of(environment: Mapping[str, str]) -> Step:
    """The step of a process that `srun` has started."""
    job, number = _number(environment, JOB), _number(environment, STEP)
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", ""))
    node = environment.get("SLURM_NODEID", "")
    tasks = tasks_per_host(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_rank = environment.get("SLURM_LOCALID", "")
    return Step(
        rank=_number(environment, RANK),
        size=_number(environment, SIZE),
        local_rank=int(local_rank) if local_rank.isdigit() else None,
        local_size=tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else None,
        hosts=hosts,
        num_hosts=max(len(tasks), 1) if tasks else _number(environment, "SLURM_STEP_NUM_NODES"),
        name=f"{job}.{number}.{environment.get('SLURM_RESTART_COUNT', '0')}",
        port=_FIRST_PORT + (job * _SPREAD + number) % _NUM_PORTS,
    )


def first_host(hosts: str) -> str:
    """The first of Slurm's list: `node[01-04,07],gpu3` -> `node01`."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])+", hosts)
    if found is None:
        raise SpecError(f"SLURM_STEP_NODELIST is {hosts!r}: it names no host: set MASTER_ADDR to the host of rank 0")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found.group())


def tasks_per_host(text: str) -> list[int]:
    """Slurm's short form: `2(x3),1` -> [2, 2, 2, 1]; empty where it cannot be read."""
    tasks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment.get(name, "").isdigit():
        raise SpecError(
            f"{STEP} is {environment.get(STEP)} but {name} is {environment.get(name, 'not set')}: start the job by `srun`, "
            f"which sets both, or unset {STEP}"
        )
    return int(environment[name])
