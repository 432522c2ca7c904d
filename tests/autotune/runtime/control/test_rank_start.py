"""How ranks begin: what they agree on over a real store, and that it is said once, by rank 0."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from autotune.runtime.control import rank_start
from autotune.runtime.control.mpi import SingleRank
from autotune.runtime.control.rank_start import set_script_threads, take_cores, take_devices, take_transports
from autotune.runtime.control.store import StoreControl
from autotune.runtime.launch.core_choice import RankCores
from autotune.runtime.launch.device_choice import VisibleDevices
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import to_data

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "LOCAL_RANK": "0"}


class Pair(SingleRank):
    """Rank 0 of two, the other of which contributes fixed messages."""

    has_mpi = False

    def __init__(self, *theirs: Any) -> None:
        self.rank, self.size = 0, 2
        self._theirs = list(theirs)

    def share(self, message: Any) -> list[Any]:
        return [message, self._theirs.pop(0)]


@pytest.fixture(autouse=True)
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


def test_devices_are_chosen_together_and_what_is_unusual_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    one = VisibleDevices(type="cuda", names=("card",), uuids=("A",))
    theirs = {"host": socket.gethostname(), "local_rank": 1, "visible": to_data(one)}
    with caplog.at_level(logging.WARNING, "autotune"):
        choices = take_devices(Pair(theirs), one)
    assert [choice.index for choice in choices.ranks] == [0, None]
    assert choices.summary == "1 on cuda, 1 on the CPU"
    assert len(caplog.records) == 2
    other = Pair(theirs)
    other.rank = 1
    take_devices(other, one)
    assert len(caplog.records) == 2
    assert "rank 1 on host" in caplog.text
    assert "takes the CPU" in caplog.text


def test_threads_are_those_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tuple(range(6))
    own = RankCores(host="a", own=mine, launcher=mine, is_one_core=False, started_by="torchrun", is_mpirun=False)
    monkeypatch.setattr(rank_start, "own_cores", lambda *_: own)
    assert take_cores(Pair(to_data(own))) == 3
    assert take_cores(Pair(to_data(own) | {"host": "b"})) == 6


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_binding_by_default_is_undone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cores = tuple(range(8))
    own = RankCores(host="a", own=(0,), launcher=cores, is_one_core=True, started_by="mpirun", is_mpirun=True)
    bound: list[tuple[int, ...]] = []
    monkeypatch.setattr(rank_start, "own_cores", lambda *_: own)
    monkeypatch.setattr(rank_start, "bind", bound.append)
    assert take_cores(Pair(to_data(own) | {"own": [1]})) == 4
    assert bound == [cores]
    assert "undone" in caplog.text


def test_transports_without_mpi(caplog: pytest.LogCaptureFixture) -> None:
    control = StoreControl(HashStore(), 0, 2)
    assert take_transports(control, ("gloo", "mpi")) == ("gloo",)
    assert "transport mpi is left out: torchrun has started the job without MPI" in caplog.text
    assert take_transports(control, ("gloo",)) == ("gloo",)
    assert take_transports(SingleRank(), ("gloo", "mpi")) == ("gloo", "mpi")
    with pytest.raises(SpecError, match="add gloo, or use mpirun"):
        take_transports(control, ("mpi",))


def test_a_scripts_own_number_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    set_script_threads(Pair(), 4)
    monkeypatch.delenv("OMP_NUM_THREADS")
    set_script_threads(SingleRank(), 4)
    assert numbers == []
    set_script_threads(Pair(), 4)
    assert numbers == [4]
