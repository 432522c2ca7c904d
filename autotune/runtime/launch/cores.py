"""The cores of this process and of its launcher, and binding this process to others. Linux only: elsewhere nothing is bound."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.runtime.launch.core_choice import RankCores
from autotune.runtime.launch.launcher import Launcher

_BINDING_VARIABLES = (
    "PRTE_MCA_hwloc_default_binding_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "OMPI_MCA_hwloc_default_binding_policy",
    "HYDRA_BINDING",
    "I_MPI_PIN_DOMAIN",
    "I_MPI_PIN_PROCESSOR_LIST",
)
_BINDING_OPTIONS = ("--bind-to", "-bind-to", "--cpu-set", "--cpu-list", "--rankfile", "-rankfile")
_LAUNCHERS = (
    "mpirun",
    "mpiexec",
    "prterun",
    "prted",
    "orterun",
    "orted",
    "hydra_pmi_proxy",
    "mpiexec.hydra",
    "slurmstepd",
)
"""Names of processes that start ranks, as the kernel has them: at most 15 characters."""
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def own_cores(launcher: Launcher, host: str, environment: Mapping[str, str]) -> RankCores:
    """What this rank contributes to the choice of cores."""
    own = _affinity(0)
    masks, asked = [], next((name for name in _BINDING_VARIABLES if name in environment), "")
    for process in _launchers():
        with suppress(OSError, psutil.Error):
            masks.append(_affinity(process.pid))
            options = process.cmdline()
            asked = asked or next((option for option in _BINDING_OPTIONS if option in options), "")
    return RankCores(
        host=host,
        own=own,
        launcher=masks[0] if masks else own,
        is_one_core=is_one_core(own),
        started_by=str(launcher.kind),
        is_mpirun=launcher.is_mpirun,
        asked=asked,
    )


def is_one_core(cores: tuple[int, ...]) -> bool:
    """Whether these logical CPUs are hardware threads of one core."""
    if len(cores) <= 1:
        return True
    try:
        siblings = Path(_SIBLINGS.format(cores[0])).read_text(encoding="ascii")
    except OSError:
        return False
    return set(cores) <= set(_listed(siblings))


def bind(cores: tuple[int, ...]) -> None:
    """Let every thread of this process run on these cores; some were started before, by MPI for example."""
    if sys.platform != "linux":
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)


def _affinity(pid: int) -> tuple[int, ...]:
    if sys.platform != "linux":
        return tuple(range(os.cpu_count() or 1))
    return tuple(sorted(os.sched_getaffinity(pid)))


def _launchers() -> Iterator[psutil.Process]:
    """The processes that have started this one: a shell may stand between them and this process, bound as this one is."""
    with suppress(psutil.Error):
        yield from (process for process in psutil.Process().parents() if process.name() in _LAUNCHERS)


def _listed(text: str) -> list[int]:
    """The kernel's short form: `0,4-5` -> [0, 4, 5]."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
