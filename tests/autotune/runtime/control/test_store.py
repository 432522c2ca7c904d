"""Control over a real torch store: several ranks as threads of one process, and as processes that one of them ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import PrefixStore, TCPStore

from autotune.runtime.control import store as module
from autotune.runtime.control.messages import decode, encode
from autotune.runtime.control.mpi import RankSilentError
from autotune.runtime.control.store import StoreControl, start_store_control
from autotune.runtime.launch.launcher import Launcher, LauncherKind, Rendezvous
from autotune.workloads.errors import SpecError

ROOT = Path(__file__).parents[4]


def on_ranks(size: int, program: Callable[[StoreControl], Any]) -> list[Any]:
    """Run `program` as each rank of a job, in threads."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run(rank: int) -> Any:
        client = server if rank == 0 else TCPStore("127.0.0.1", server.port, is_master=False)
        return program(StoreControl(PrefixStore("job", client), rank, size))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size), timeout=60))


def test_messages_are_json_and_bytes() -> None:
    message = {"plan": [1, 2.5, None, "ü"], "raw": b"\x00\xff" * 3, "deep": [{"x": b"ab"}]}
    assert decode(encode(message)) == message
    with pytest.raises(TypeError, match="holds a object"):
        encode({"x": object()})


def test_collectives() -> None:
    def program(control: StoreControl) -> Any:
        given = control.broadcast({"from": 0} if control.is_leader else None)
        gathered = control.gather([control.rank, b"raw"])
        shared = [control.share(control.rank * 10 + number) for number in range(5)]
        offset = control.clock_offset(lambda: time.monotonic() + control.rank)
        return given, gathered, shared, offset

    results = on_ranks(3, program)
    assert [result[0] for result in results] == [{"from": 0}] * 3
    assert [result[1] for result in results] == [[[0, b"raw"], [1, b"raw"], [2, b"raw"]], None, None]
    assert all(result[2] == [[n, 10 + n, 20 + n] for n in range(5)] for result in results)
    for rank, (*_, (ahead_s, error_s)) in enumerate(results):
        assert abs(ahead_s - rank) <= max(error_s, 1e-9)
        assert error_s < 0.5


def test_messages_above_the_limit_of_a_value_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PIECE_BYTES", 1000)
    stores: list[Any] = []

    def program(control: StoreControl) -> Any:
        if control.is_leader:
            stores.append(control._store)
        return control.broadcast(control.gather("x" * 2500 + str(control.rank)))

    results = on_ranks(2, program)
    assert results == [["x" * 2500 + "0", "x" * 2500 + "1"]] * 2
    left = [f"{way}/1{rest}" for way in ("down", "up") for rest in ("", "/1", "/2", "/1/1", "/read")]
    assert not any(stores[0].check([key]) for key in left)


def test_a_rank_that_does_not_answer() -> None:
    def program(control: StoreControl) -> Any:
        if not control.is_leader:
            return None
        with pytest.raises(RankSilentError, match="rank 1 did not answer in time"):
            control.gather(None, timeout_s=0.2)
        return "noticed"

    assert on_ranks(2, program) == ["noticed", None]


def test_transport_mpi_is_refused_by_name() -> None:
    control = StoreControl(None, 0, 2)
    assert not control.has_mpi
    with pytest.raises(SpecError, match=r"transport 'mpi' needs an MPI launcher.*mpirun -n 2"):
        _ = control.comm


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def rendezvous(port: int) -> Rendezvous:
    return Rendezvous(address="127.0.0.1", port=port, name="slurm.1.2.0", is_served=False, chosen_by="SLURM_JOB_ID")


def test_a_port_in_use_is_refused_with_its_origin() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = rendezvous(other.getsockname()[1])
        launcher = Launcher(kind=LauncherKind.SRUN, rank=0, size=2, rendezvous=where)
        with pytest.raises(SpecError, match=r"\(from SLURM_JOB_ID\) cannot be opened.*set MASTER_PORT"):
            start_store_control(launcher)


def test_the_store_of_another_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_S", 1.0)
    other = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    PrefixStore("autotune/slurm.9.9.0", other).set("job", "2")
    launcher = Launcher(kind=LauncherKind.SRUN, rank=1, size=2, rendezvous=rendezvous(other.port))
    with pytest.raises(SpecError, match=r"does not know this job \(slurm.1.2.0\)"):
        start_store_control(launcher)


def test_no_store_at_all_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_S", 0.5)
    launcher = Launcher(kind=LauncherKind.SRUN, rank=1, size=2, rendezvous=rendezvous(free_port()))
    with pytest.raises(SpecError, match=r"no store of rank 0 at 127\.0\.0\.1"):
        start_store_control(launcher)


RANK = """
import os, sys, time
from autotune.runtime.control.start import start_control
control = start_control()
print(control.share([control.rank, control.size]), flush=True)
if sys.argv[1] == "aborts":
    if control.rank == 1:
        control.abort(7)
    time.sleep(600)  # in no call of ours
if sys.argv[1] == "raises":
    if control.rank == 0:
        raise ValueError("out of luck")
    time.sleep(600)
if sys.argv[1] == "dies":
    if control.rank == 0:
        os._exit(1)
    time.sleep(600)
if sys.argv[1] == "big":
    assert start_control() is control
    control.broadcast("x" * 20_000_000)
"""


def slurm_job(how: str, size: int = 2) -> list[tuple[int, str, str]]:
    """A program on ranks that find each other as under srun without MPI; code, output and errors of each."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "1",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": str(size),
        "SLURM_STEP_NODELIST": "alone",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
    }

    def run(rank: int) -> tuple[int, str, str]:
        env = os.environ | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        done = subprocess.run(
            [sys.executable, "-c", RANK, how], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_ranks_without_a_launchers_store_meet_and_leave_together() -> None:
    """Rank 0 serves the store and has the shortest way out; no rank loses its last message."""
    for code, out, err in slurm_job("big"):
        assert (code, out) == (0, "[[0, 2], [1, 2]]\n"), err


@pytest.mark.parametrize(
    ("how", "expected"), [("aborts", 7), *(pytest.param(how, 1, marks=pytest.mark.slow) for how in ("raises", "dies"))]
)
def test_a_rank_that_fails_ends_the_others_at_once(how: str, expected: int) -> None:
    found = slurm_job(how)
    assert [code for code, *_ in found] == [expected, expected]
    assert ("ValueError: out of luck" in found[0][2]) == (how == "raises")


@pytest.mark.parametrize(
    ("resolved", "expected"),
    [("10.0.0.5", "10.0.0.5"), ("127.0.1.1", ""), ("10.0.0.9", ""), (None, "")],
    ids=["own address", "only this host", "another host's", "unknown"],
)
def test_the_store_listens_on_the_address_that_the_others_use(
    resolved: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_name: str) -> str:
        if resolved is None:
            raise OSError("unknown")
        return resolved

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    monkeypatch.setattr(module, "own_networks", lambda: ["192.168.0.2/24", "10.0.0.5/8"])
    assert module._listen_address("node1") == expected


def test_the_store_of_one_machine_listens_on_loopback() -> None:
    assert module._listen_address("127.0.0.1") == "127.0.0.1"
