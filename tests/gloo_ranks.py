"""Several ranks as threads of one process, joined by gloo: real collectives, without the second that mpirun takes."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autotune.runtime.control.network import Network
from autotune.runtime.control.open_network import open_network

LIMIT_S = 90.0
"""Less than the time limit of a test, so that the threads that hang are named."""
_OF_THREAD = threading.local()


class ThreadControl:
    """The control plane of ranks that are threads."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, shared: list[Any]) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._shared = barrier, shared

    def share(self, message: Any) -> list[Any]:
        self._shared[self.rank] = message
        self._barrier.wait(20)
        found = list(self._shared)
        self._barrier.wait(20)
        return found


def thread_controls(size: int) -> list[ThreadControl]:
    barrier, shared = threading.Barrier(size), [None] * size
    return [ThreadControl(rank, size, barrier, shared) for rank in range(size)]


def rank_network() -> Network:
    """The control network of the rank that this thread is; that of a job with one rank in other threads."""
    return getattr(_OF_THREAD, "network", None) or Network.alone()


def gloo_group(store: Any, rank: int, size: int, timeout_s: float = 20.0) -> dist.ProcessGroup:
    """One rank's process group."""
    kind = dist.ProcessGroup.BackendType.GLOO
    group = dist.ProcessGroup(store, rank, size)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(store, rank, size, options))
    return group


def on_networks(size: int, run: Callable[[Network], Any], *, limit_s: float = LIMIT_S) -> list[Any]:
    """What `run` returns on each rank, or the exception it raised; ranks have a control network and no process group."""
    controls = thread_controls(size)

    def rank_runs(rank: int) -> Any:
        network = _OF_THREAD.network = open_network(controls[rank])
        try:
            return run(network)
        except Exception as error:  # noqa: BLE001 - the test says what it expects
            return error
        finally:
            network.leave(5.0)
            network.stop()

    return in_threads(size, rank_runs, limit_s=limit_s)


def in_threads(size: int, run: Callable[[int], Any], *, limit_s: float = LIMIT_S) -> list[Any]:
    """`run(rank)` of each rank in a thread of its own. Threads that do not end fail the test, with their stacks.

    A ThreadPoolExecutor would wait for them for ever: at its end, and again when Python ends.
    """
    results: list[Future[Any]] = [Future() for _ in range(size)]

    def rank_runs(rank: int) -> None:
        try:
            results[rank].set_result(run(rank))
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            results[rank].set_exception(error)

    threads = [
        threading.Thread(target=rank_runs, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(end_s - time.monotonic(), 0))
    if hung := [thread for thread in threads if thread.is_alive()]:
        raise AssertionError(f"threads did not end within {limit_s:g} s\n" + "\n".join(map(_stack, hung)))
    return [result.result() for result in results]


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}:\n{''.join(traceback.format_stack(frame))}"


def on_ranks(
    size: int, run: Callable[[dist.ProcessGroup], Any], *, timeout_s: float = 20.0, limit_s: float = LIMIT_S
) -> list[Any]:
    """What `run` returns on each rank, or the exception it raised."""
    store = dist.HashStore()
    return on_networks(size, lambda network: run(gloo_group(store, network.rank, size, timeout_s)), limit_s=limit_s)
