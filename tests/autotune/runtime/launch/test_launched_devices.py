"""Devices of a job of four ranks on two hosts, in the environment of each launcher: the right one, or a sentence that says why not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.rank_start import agree_on_devices
from autotune.runtime.launch.device_choice import DeviceChoices, VisibleDevices

HOSTS = ("a", "a", "b", "b")
NOTHING = VisibleDevices()
Environment = Callable[[int], dict[str, str]]


def open_mpi(rank: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 2),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_RANK": str(rank),
    }


def mpich(rank: int) -> dict[str, str]:
    local = {"MPI_LOCALRANKID": str(rank % 2), "MPI_LOCALNRANKS": "2"}
    return {"PMI_RANK": str(rank), "PMI_SIZE": "4", **local}


def intel(rank: int) -> dict[str, str]:
    return mpich(rank) | {"I_MPI_ROOT": "/opt/mpi"}


def srun(rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "812",
        "SLURM_STEP_ID": "5",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_NODEID": str(rank // 2),
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "a,b",
    }


def srun_pmix(rank: int) -> dict[str, str]:
    return srun(rank) | {"PMIX_RANK": str(rank)}


def torchrun(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RUN_ID": "x",
    }


LAUNCHERS = [open_mpi, mpich, intel, srun, srun_pmix, torchrun]


def gpus(*uuids: str) -> VisibleDevices:
    return VisibleDevices(type="cuda", names=("card",) * len(uuids), uuids=uuids)


class Collecting:
    """A control plane that has the messages of all ranks: first it collects them, then it answers."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.answers: list[Any] = []
        self.rank = 0

    def share(self, message: Any) -> list[Any]:
        self.messages.append(message)
        return self.answers or [message]


def chosen(launcher: Environment, sees: Sequence[VisibleDevices], patch: pytest.MonkeyPatch) -> DeviceChoices:
    """The choices, which must be the same on every rank."""
    control = Collecting()

    def each() -> list[DeviceChoices]:
        found = []
        for rank in range(len(HOSTS)):
            with patch.context() as environment:
                for name in tuple(os.environ):
                    if name.startswith(("OMPI_", "PMI", "SLURM_", "I_MPI_", "MPI_LOCAL")):
                        environment.delenv(name)
                for name, value in launcher(rank).items():
                    environment.setenv(name, value)
                environment.setattr(socket, "gethostname", lambda rank=rank: HOSTS[rank])
                found.append(agree_on_devices(cast("Control", control), sees[rank]))
        return found

    each()
    control.answers = list(control.messages)
    first, *others = each()
    assert all(other == first for other in others)
    return first


def indices(found: DeviceChoices) -> list[int | None]:
    return [choice.index for choice in found.ranks]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_rank_takes_the_accelerator_at_its_place_on_its_host(
    launcher: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chosen(launcher, [gpus("A", "B"), gpus("A", "B"), gpus("C", "D"), gpus("C", "D")], monkeypatch)
    assert indices(found) == [0, 1, 0, 1]
    assert found.notes == ()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_visible_accelerator_for_each_rank(launcher: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(launcher, [gpus("A"), gpus("B"), gpus("C"), gpus("D")], monkeypatch)
    assert indices(found) == [0, 0, 0, 0]
    assert found.notes == ()


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("sees", "taken", "words"),
    [
        # more ranks than accelerators
        ([gpus("A", "B")] * 2 + [gpus("C")] * 2, [0, 1, 0, None], "rank 3 on host b takes the CPU: cuda:0 (card, C)"),
        # the same one visible to both ranks of a host
        ([gpus("A")] * 2 + [gpus("C"), gpus("D")], [0, None, 0, 0], "rank 1 on host a takes the CPU: cuda:0 (card, A)"),
        # none visible to a rank
        ([gpus("A"), NOTHING, gpus("C"), gpus("D")], [0, None, 0, 0], "compare the ranks' CUDA_VISIBLE_DEVICES"),
        # none on a host
        ([gpus("A", "B")] * 2 + [NOTHING] * 2, [0, 1, None, None], "rank 2 on host b takes the CPU: the host has no"),
    ],
)
def test_no_rank_takes_the_cpu_silently(
    launcher: Environment,
    sees: list[VisibleDevices],
    taken: list[int | None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = chosen(launcher, sees, monkeypatch)
    assert indices(found) == taken
    assert any(words in note for note in found.notes), found.notes
    assert sum("takes the CPU" in note for note in found.notes) == taken.count(None)
    assert found.is_mixed
    assert "this is a mixed job of 4 ranks" in found.notes[-1]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_without_accelerators_has_nothing_to_say(launcher: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(launcher, [NOTHING] * 4, monkeypatch).notes == ()
