"""How each rank begins: which cores, how many threads, which device; agreed by all ranks, and said aloud once, by rank 0."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable

import torch

from autotune.runtime.control.mpi import Control
from autotune.runtime.launch.core_choice import RankCores, choose_cores
from autotune.runtime.launch.cores import bind, own_cores
from autotune.runtime.launch.device_choice import DeviceChoices, RankPlace, VisibleDevices, choose_devices
from autotune.runtime.launch.launcher import launcher_of
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import from_data, to_data

_LOG = logging.getLogger("autotune")
THREADS_VARIABLE = "OMP_NUM_THREADS"


def take_cores(control: Control) -> int:
    """Undo a binding to one core that only the launcher's default has made; the number of threads for this rank."""
    num_threads, notes = agree_on_cores(control)
    _say(control, notes)
    return num_threads


def agree_on_cores(control: Control) -> tuple[int, tuple[str, ...]]:
    """The same, with what a user should know, which is not said."""
    own = own_cores(launcher_of(os.environ), socket.gethostname(), os.environ)
    shared = control.share(to_data(own))
    choices, notes = choose_cores([from_data(RankCores, one, f"rank {rank}") for rank, one in enumerate(shared)])
    if choices[control.rank].rebinds:
        bind(choices[control.rank].cores)
    return choices[control.rank].num_threads, notes


def take_devices(control: Control, visible: VisibleDevices) -> DeviceChoices:
    """The devices of all ranks, of which each sees `visible` ones."""
    choices = agree_on_devices(control, visible)
    _say(control, choices.notes)
    return choices


def agree_on_devices(control: Control, visible: VisibleDevices) -> DeviceChoices:
    """The same, without saying aloud what a user should know."""
    launcher = launcher_of(os.environ)
    own = RankPlace(host=socket.gethostname(), local_rank=launcher.local_rank, visible=visible)
    shared = control.share(to_data(own))
    return choose_devices([from_data(RankPlace, one, f"rank {rank}") for rank, one in enumerate(shared)])


def take_transports(control: Control, transports: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the transports that this job can open: MPI's only if MPI has started it."""
    if control.has_mpi or "mpi" not in transports:
        return transports
    launcher = launcher_of(os.environ).kind
    others = tuple(name for name in transports if name != "mpi")
    if not others:
        raise SpecError(
            f"--transports names mpi only, but {launcher} has started the job without MPI: add gloo, or use mpirun"
        )
    _say(control, [f"transport mpi is left out: {launcher} has started the job without MPI"])
    return others


def set_script_threads(control: Control, num_threads: int) -> None:
    """In a user's script: where several ranks share the cores and the user has set no number of threads."""
    if control.size > 1 and THREADS_VARIABLE not in os.environ:
        torch.set_num_threads(num_threads)


def _say(control: Control, notes: Iterable[str]) -> None:
    for note in notes if control.is_leader else ():
        _LOG.warning("autotune: %s", note)
