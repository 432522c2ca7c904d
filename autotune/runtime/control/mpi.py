"""Collectives of the control plane over MPI. No other module imports mpi4py.

Messages are small JSON-able values (`messages`). A blocking MPI call spins at full speed and slows the ranks that compute, so every
wait polls with a short sleep instead. An exception that escapes on any rank aborts the whole job, with one message that
names the rank.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from autotune.runtime.control.messages import decode, encode
from autotune.runtime.control.network import REPORTED, Network
from autotune.runtime.control.open_network import open_network
from autotune.runtime.control.time_limit import SET_UP_VARIABLE, set_up_limit_s
from autotune.runtime.control.watcher import RankWatcher
from autotune.workloads.errors import AutotuneError

_POLL_S = 0.0005
_LEADER_S = 2.0
"""How much longer other ranks wait than rank 0, which knows better which rank is missing."""
_TAG_DOWN, _TAG_UP, _TAG_CLOCK = 1, 2, 3
_NUM_CLOCK_READINGS = 20
_CLOCK = struct.Struct("<dd")


class RankSilentError(AutotuneError):
    """A rank did not report in time; the job cannot go on without it."""


class Control:
    """The rank of this process, the number of ranks, and their collectives. Called by the main thread of each rank."""

    has_mpi = True
    """Whether `comm` can carry tensors as well."""
    watcher: RankWatcher | None = None
    """Since the control network is open."""
    _network: Network | None = None
    num_sent = 0
    """Messages that this rank has sent, without those of the control network."""
    is_part = False
    """Whether its ranks are some of a job's."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    @property
    def comm(self) -> Any:
        """The MPI communicator of all ranks."""
        return self._comm

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def network(self) -> Network:
        """The control network of the job: opened by the first call, which all ranks make together."""
        if self._network is None:
            try:
                self._network = open_network(self)
            except Exception as error:  # noqa: BLE001 - no network can tell the others, which may wait for this rank for ever
                sys.stderr.write(f"autotune: error: {error}\n")
                self.abort(1)
            if not self.is_part:  # those of the whole job watch over its ranks
                self.watcher = RankWatcher(self._network, self.abort)
        return self._network

    def part(self, ranks: Sequence[int]) -> Control:
        """The control plane among some ranks, of which this is one: the n-th of them is rank n. Called by those ranks only."""
        made = self._among(ranks)
        made.is_part, made.watcher = True, self.watcher
        return made

    def _among(self, ranks: Sequence[int]) -> Control:
        return Control(self.comm.Create_group(self.comm.Get_group().Incl(list(ranks))))

    def begin_to_leave(self, error: BaseException | None = None) -> None:
        """This rank takes part in nothing more: every wait of the others for it ends, at once if it has failed."""
        if self.watcher is not None and error is None:
            self.watcher.leaving()
        elif self.watcher is not None and error is not None:
            self.watcher.fail(error)

    def leave(self, error: BaseException | None = None) -> None:
        """The job has ended on this rank."""
        if self.watcher is not None:
            self.watcher.leave(error)

    def broadcast(self, message: Any = None) -> Any:
        """Rank 0's message, on every rank."""
        if not self.is_leader:
            return self._receive(source=0, tag=_TAG_DOWN, deadline=None)
        data = encode(message)
        self._finish([self.comm.Isend([data, len(data)], dest=rank, tag=_TAG_DOWN) for rank in range(1, self.size)])
        return message

    def gather(self, message: Any, *, timeout_s: float | None = None) -> list[Any] | None:
        """Every rank's message on rank 0, None elsewhere. Raises RankSilentError if a rank does not answer in time."""
        if not self.is_leader:
            data = encode(message)
            self._finish([self.comm.Isend([data, len(data)], dest=0, tag=_TAG_UP)])
            return None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return [message, *(self._receive(source=rank, tag=_TAG_UP, deadline=deadline) for rank in range(1, self.size))]

    def share(self, message: Any) -> list[Any]:
        """Every rank's message on every rank."""
        return list(self.broadcast(self.gather(message)))

    def clock_offset(self, clock: Callable[[], float] = time.monotonic) -> tuple[float, float]:
        """How far this rank's clock is ahead of rank 0's, and the error bound of that; called by all ranks together.

        Rank 0 requests the time of one rank after another, several times each. The shortest round trip bounds the error
        by half its length (Cristian, 1989). These waits do not sleep, which would add to the error, except that for a rank's
        turn: ranks that spin meanwhile would slow the others.
        """
        found = (0.0, 0.0)
        for rank in range(1, self.size):
            if self.is_leader:
                readings = [self._read_clock(rank, clock) for _ in range(_NUM_CLOCK_READINGS)]
                offset = min(readings, key=lambda reading: reading[1])
                self._send_clock(rank, offset)
            elif self.rank == rank:
                for reading in range(_NUM_CLOCK_READINGS):
                    self._take_clock(0, sleep_s=_POLL_S if reading == 0 else 0.0)
                    self._send_clock(0, (clock(), 0.0))
                found = self._take_clock(0)
        return found

    def _read_clock(self, rank: int, clock: Callable[[], float]) -> tuple[float, float]:
        begun = clock()
        self._send_clock(rank, (0.0, 0.0))
        theirs, _ = self._take_clock(rank)
        ended = clock()
        return theirs - (begun + ended) / 2, (ended - begun) / 2

    def _send_clock(self, rank: int, values: tuple[float, float]) -> None:
        self.num_sent += 1
        self.comm.Send([_CLOCK.pack(*values), _CLOCK.size], dest=rank, tag=_TAG_CLOCK)

    def _take_clock(self, rank: int, *, sleep_s: float = 0.0) -> tuple[float, float]:
        """Spins unless it may sleep, but not for ever."""
        begun_s = time.monotonic()
        while not self.comm.Iprobe(source=rank, tag=_TAG_CLOCK):
            self._check_ranks(time.monotonic() - begun_s)
            if sleep_s:
                time.sleep(sleep_s)
        data = bytearray(_CLOCK.size)
        self.comm.Recv([data, _CLOCK.size], source=rank, tag=_TAG_CLOCK)
        first, second = _CLOCK.unpack(data)
        return first, second

    def _receive(self, *, source: int, tag: int, deadline: float | None) -> Any:
        from mpi4py import MPI  # noqa: PLC0415 - loaded already, for the communicator

        status, begun_s = MPI.Status(), time.monotonic()
        while (message := self.comm.Improbe(source=source, tag=tag, status=status)) is None:
            waited_s = time.monotonic() - begun_s
            self._check_ranks(waited_s)
            if deadline is not None and time.monotonic() > deadline:
                raise RankSilentError(f"rank {source} did not answer in time: it hangs or has died")
            self._check_joined(source, waited_s)
            time.sleep(_POLL_S)
        data = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([data, len(data)])
        return decode(bytes(data))

    def _finish(self, requests: list[Any]) -> None:
        self.num_sent += len(requests)
        begun_s = time.monotonic()
        while not all(request.Test() for request in requests):
            self._check_ranks(time.monotonic() - begun_s)
            time.sleep(_POLL_S)

    def _check_ranks(self, waited_s: float) -> None:
        """Every wait of the control plane calls this: it raises PeerLostError once a rank is lost."""
        if self.watcher is not None:
            self.watcher.check(waited_s)

    def _check_joined(self, rank: int, waited_s: float) -> None:
        """Before the network is open nothing watches this rank, so that waits for it have a limit."""
        if self._network is None and waited_s > set_up_limit_s() + (0 if self.is_leader else _LEADER_S):
            raise RankSilentError(
                f"rank {rank} has not joined the job of {self.size} ranks within {waited_s:.0f} s: it hangs, or has ended, "
                f"before that; ${SET_UP_VARIABLE} sets the limit in seconds"
            )

    def abort(self, exit_code: int) -> NoReturn:
        """End every rank of the job at once. The results that must survive are on disk already."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._network is not None:
            self._network.farewell(REPORTED, f"rank {self.rank} has ended the job")
        self.comm.Abort(exit_code)
        os._exit(exit_code)


class SingleRank(Control):
    """A job of one process, started without MPI: MPI is loaded only if a plan's transport is MPI."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    @property
    def comm(self) -> Any:
        from mpi4py import MPI  # noqa: PLC0415 - importing it starts MPI

        return MPI.COMM_WORLD


def join_mpi() -> tuple[Any, str]:
    """Join the MPI job of this process: the communicator of all ranks, and the name of the library."""
    from mpi4py import MPI  # noqa: PLC0415 - importing it joins the job

    return MPI.COMM_WORLD, MPI.Get_library_version().split(",")[0].strip()
