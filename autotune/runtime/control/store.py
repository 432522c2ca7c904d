"""The control plane of a job without MPI: ranks that `torchrun` or `srun` has started exchange messages through a torch store.

Messages are JSON-able values, in which bytes may stand as well; never pickled objects. A waiting rank polls the store and
sleeps in between; torch logs a warning for each wait inside the store that times out. A rank that fails sets one key: a
thread of every other rank looks for that key and ends its process, whatever its main thread is waiting for.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistNetworkError, DistStoreError

from autotune.runtime.control.address import LOOPBACK, own_networks
from autotune.runtime.control.messages import decode, encode
from autotune.runtime.control.mpi import Control, RankSilentError
from autotune.runtime.control.network import REPORTED
from autotune.runtime.launch.launcher import Launcher, Rendezvous
from autotune.workloads.errors import SpecError

_FIRST_SLEEP_S, _LONGEST_SLEEP_S, _GROWTH = 0.0002, 0.01, 1.2
"""Sleeps between two looks at the store: a message that comes soon is found soon, a long wait costs little."""
_WATCH_S = 0.25
_OPEN_S = 60.0
"""How long ranks wait for the store of rank 0, and for the first key in it."""
_LEAVE_S, _NOTICE_S = 5.0, 0.5
_MAX_PIECE_BYTES = 4 * 2**20
"""torch's store refuses values above 8 MiB."""
_NUM_CLOCK_READINGS = 20
_ABORT, _LEADER_LEFT = "abort", "leader left"


class StoreControl(Control):
    """Control over a store that all ranks reach. Called by the main thread of each rank, the same calls on all ranks."""

    has_mpi = False

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self.rank, self.size = rank, size
        self._num_broadcasts = self._num_gathers = self._num_clocks = 0
        self.is_leaving = threading.Event()
        """Set by the main thread, read by the watcher: this rank ends by itself."""

    @property
    def comm(self) -> Any:
        raise SpecError(
            "transport 'mpi' needs an MPI launcher, and the job was started without one: use transport gloo, or start it by "
            f"`mpirun -n {self.size}`"
        )

    def _among(self, ranks: Sequence[int]) -> Control:
        store = PrefixStore(f"part {','.join(map(str, ranks))}", self._store)
        return StoreControl(store, list(ranks).index(self.rank), len(ranks))

    def broadcast(self, message: Any = None) -> Any:
        self._num_broadcasts += 1
        key = f"down/{self._num_broadcasts}"
        if self.is_leader:
            if self.size > 1:
                self._put(key, encode(message))
            return decode(encode(message))
        data, num_pieces = self._take(key, deadline=None)
        if self._store.add(f"{key}/read", 1) == self.size - 1:
            self._drop(key, num_pieces)
            self._store.delete_key(f"{key}/read")
        return decode(data)

    def gather(self, message: Any, *, timeout_s: float | None = None) -> list[Any] | None:
        self._num_gathers += 1
        data = encode(message)
        if not self.is_leader:
            self._put(self._up(self.rank), data)
            return None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        gathered = [decode(data)]
        for rank in range(1, self.size):
            found, num_pieces = self._take(self._up(rank), deadline=deadline, rank=rank)
            self._drop(self._up(rank), num_pieces)
            gathered.append(decode(found))
        return gathered

    def clock_offset(self, clock: Callable[[], float] = time.monotonic) -> tuple[float, float]:
        """As over MPI; a request and its answer pass through the store, whose time the error bound contains."""
        self._num_clocks += 1
        found = (0.0, 0.0)
        for rank in range(1, self.size):
            keys = [f"clock/{self._num_clocks}/{rank}/{number}" for number in range(_NUM_CLOCK_READINGS)]
            if self.is_leader:
                readings = [self._read_clock_at(key, rank, clock) for key in keys]
                self._put(f"{keys[0]}/offset", encode(min(readings, key=lambda reading: reading[1])))
            elif self.rank == rank:
                for key in keys:
                    self._receive_once(key, rank=0)
                    self._put(f"{key}/answer", encode(clock()))
                ahead_s, error_s = self._receive_once(f"{keys[0]}/offset", rank=0)
                found = ahead_s, error_s
        return found

    def abort(self, exit_code: int) -> NoReturn:
        """End every rank of the job: the watcher of each of them ends its process."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._network is not None:
            self._network.farewell(REPORTED, f"rank {self.rank} has ended the job")
        self.release(exit_code)
        time.sleep(_NOTICE_S)  # rank 0 may serve the store: the others read the key first
        os._exit(exit_code)

    def release(self, exit_code: int) -> None:
        """End every other rank of the job."""
        self.is_leaving.set()
        with suppress(DistStoreError, DistNetworkError, RuntimeError):
            self._store.set(_ABORT, str(exit_code))

    def leave_store(self) -> None:
        """Called at the end of the process. Rank 0 may serve the store: it stays until every rank has read its last message
        and leaves as well, or, where this rank has failed, has had time to read that.
        """
        wait_s = _NOTICE_S if self.is_leaving.is_set() else _LEAVE_S
        self.is_leaving.set()
        with suppress(DistStoreError, DistNetworkError, RuntimeError):
            if self.is_leader:
                self._store.set(_LEADER_LEFT, "")
            if self._store.add("left", 1) == self.size:
                self._store.set("all left", "")
            deadline = time.monotonic() + wait_s
            while self.is_leader and not self._store.check(["all left"]) and time.monotonic() < deadline:
                time.sleep(_LONGEST_SLEEP_S)

    def _read_clock_at(self, key: str, rank: int, clock: Callable[[], float]) -> tuple[float, float]:
        begun = clock()
        self._put(key, encode(None))
        theirs = float(self._receive_once(f"{key}/answer", rank=rank))
        ended = clock()
        return theirs - (begun + ended) / 2, (ended - begun) / 2

    def _up(self, rank: int) -> str:
        return f"up/{self._num_gathers}/{rank}"

    def _receive_once(self, key: str, *, rank: int) -> Any:
        data, num_pieces = self._take(key, deadline=None, rank=rank)
        self._drop(key, num_pieces)
        return decode(data)

    def _put(self, key: str, data: bytes) -> None:
        """The first piece last: it states how many there are."""
        pieces = [data[start : start + _MAX_PIECE_BYTES] for start in range(0, len(data), _MAX_PIECE_BYTES)]
        for number, piece in list(enumerate(pieces))[1:]:
            self._store.set(f"{key}/{number}", piece)
        self._store.set(key, b"%d:%b" % (len(pieces), pieces[0]))

    def _take(self, key: str, *, deadline: float | None, rank: int = 0) -> tuple[bytes, int]:
        """The data at `key`, once rank `rank` has put it there, and the number of its pieces."""
        try:
            sleep_s, begun_s = _FIRST_SLEEP_S, time.monotonic()
            while not self._store.check([key]):
                self._check_ranks(time.monotonic() - begun_s)
                self._check_joined(rank, time.monotonic() - begun_s)
                if deadline is not None and time.monotonic() > deadline:
                    raise RankSilentError(f"rank {rank} did not answer in time: it hangs or has died")
                time.sleep(sleep_s)
                sleep_s = min(sleep_s * _GROWTH, _LONGEST_SLEEP_S)
            count, _, first = self._store.get(key).partition(b":")
            rest = [self._store.get(f"{key}/{number}") for number in range(1, int(count))]
        except DistNetworkError as error:
            raise RankSilentError(
                f"the store of the job is gone: rank 0 or its launcher has ended ({error})"
            ) from error
        return b"".join([first, *rest]), int(count)

    def _drop(self, key: str, num_pieces: int) -> None:
        for name in (key, *(f"{key}/{number}" for number in range(1, num_pieces))):
            self._store.delete_key(name)


def start_store_control(launcher: Launcher) -> StoreControl:
    """Meet the other ranks at the store, and watch for their failure."""
    where = launcher.rendezvous
    assert where is not None
    base: Any = _open(where, serves=launcher.rank == 0 and not where.is_served)
    store = PrefixStore(f"autotune/{where.name}", base)
    control = StoreControl(store, launcher.rank, launcher.size)
    _check_same_job(store, where, control)
    watched = PrefixStore(f"autotune/{where.name}", base.clone())
    threading.Thread(target=_watch, args=(watched, control.is_leaving), name="autotune-abort", daemon=True).start()
    return control


def _open(where: Rendezvous, *, serves: bool) -> TCPStore:
    timeout = timedelta(seconds=_OPEN_S)
    try:
        if serves:
            listener = socket.create_server((_listen_address(where.address), where.port))
            return TCPStore(
                where.address,
                where.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timeout,
                master_listen_fd=listener.detach(),
            )
        _wait_for_listener(where)
        return TCPStore(where.address, where.port, is_master=False, timeout=timeout)
    except OSError as error:
        raise SpecError(
            f"port {where.port} (from {where.chosen_by}) cannot be opened: {error.strerror}: set MASTER_PORT to a free one"
        ) from error
    except (DistNetworkError, DistStoreError) as error:
        raise SpecError(
            f"no store of rank 0 at {where.address}:{where.port} (from {where.chosen_by}) within {_OPEN_S:g} s: set "
            f"MASTER_ADDR and MASTER_PORT to an address of its host that the other hosts reach ({error})"
        ) from error


def _listen_address(name: str) -> str:
    """The address of this host that the name stands for, so that no other interface listens; all of them if it stands for
    none that other hosts reach: the name of a Debian host is 127.0.1.1 on that host, and rank 0 connects by that name too.
    """
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return ""
    is_own = any(address == one.partition("/")[0] for one in own_networks())
    return address if is_own or name in {"localhost", LOOPBACK} else ""


def _wait_for_listener(where: Rendezvous) -> None:
    """torch's store logs each refused attempt with its stack, and rank 0 may start later than this rank."""
    deadline = time.monotonic() + _OPEN_S
    while True:
        try:
            socket.create_connection((where.address, where.port), timeout=_OPEN_S).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise DistNetworkError(str(error)) from error
            time.sleep(_WATCH_S)
        else:
            return


def _check_same_job(store: Any, where: Rendezvous, control: StoreControl) -> None:
    """The port may belong to another job: its store lacks the key of this one."""
    if control.is_leader:
        store.set("job", str(control.size))
    try:
        store.wait(["job"], timedelta(seconds=_OPEN_S))
        size = int(store.get("job"))
    except (DistStoreError, DistNetworkError) as error:
        raise SpecError(
            f"the store at {where.address}:{where.port} (from {where.chosen_by}) does not know this job ({where.name}): "
            "another job has the port: set MASTER_PORT to a free one"
        ) from error
    if size != control.size:
        raise SpecError(
            f"rank {control.rank} was started for {control.size} ranks and rank 0 for {size}: restart all of them"
        )


def _watch(store: Any, is_leaving: threading.Event) -> None:
    """Runs in a thread of its own: end the process when a rank has failed, or rank 0 is gone without having left."""
    exit_code = 1
    try:
        while not store.check([_ABORT]):
            if store.check([_LEADER_LEFT]) or is_leaving.wait(_WATCH_S):
                return
        exit_code = int(store.get(_ABORT))
    except (DistNetworkError, DistStoreError, RuntimeError, ValueError):
        sys.stderr.write("autotune: error: the store of the job is gone: rank 0 or its launcher has ended\n")
        sys.stderr.flush()
    if not is_leaving.is_set():
        os._exit(exit_code)
