"""Several ranks as threads of one process, joined by gloo: real collectives, without the second that mpirun takes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


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


def on_ranks(size: int, run: Callable[[dist.ProcessGroup], Any], *, timeout_s: float = 20.0) -> list[Any]:
    """What `run` returns on each rank, or the exception it raised."""
    store = dist.HashStore()

    def rank_runs(rank: int) -> Any:
        try:
            return run(gloo_group(store, rank, size, timeout_s))
        except Exception as error:  # noqa: BLE001 - the test says what it expects
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank_runs, range(size)))
