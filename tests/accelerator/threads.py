"""Several ranks as threads of one process, each with a device of its own, joined by the fake NCCL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
from autotune.runtime.control.network import Network
from tests.accelerator import devices, races, streams, timeline
from tests.accelerator.nccl import FakeNccl
from tests.gloo_ranks import on_networks


def on_device_ranks(size: int, run: Callable[[FakeNccl], Any], *, timeout_s: float = 20.0) -> list[Any]:
    """What `run` returns on each rank, or the exception it raised; rank i has device i as its current device."""
    store, opened, groups = dist.HashStore(), threading.Barrier(size), []
    before = devices.count()
    devices.set_count(max(size, before))

    def rank_runs(network: Network) -> Any:
        rank = network.rank
        torch.get_device_module(streams.NAME).set_device(rank)
        group = None
        try:
            group = FakeNccl(store, rank, size, timedelta(seconds=timeout_s))
            groups.append(group)  # peers of a rank that has failed notice nothing, as with NCCL
            opened.wait(timeout_s)
            result = run(group)
        except Exception as error:  # noqa: BLE001 - the test says what it expects
            if group is not None:
                group.abort()
            return error
        group.shutdown()
        return result

    try:
        return on_networks(size, rank_runs)
    finally:
        devices.set_count(before)
        races.forget()
        timeline.reset()
