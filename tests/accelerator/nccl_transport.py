"""The fake NCCL as a transport of plans: `autotune … --load tests.accelerator.nccl_transport`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
from autotune.runtime.transport.open_group import beside_messages
from autotune.workloads.plan.choices import TRANSPORTS, Transport
from tests.accelerator.nccl import FakeNccl
from tests.accelerator.streams import NAME


def open_fake_nccl(request: Any) -> dist.ProcessGroup:
    group = FakeNccl(request.store, request.control.rank, request.control.size, request.timeout)
    return beside_messages(request, group)


def register() -> None:
    """Add the transport "fake-nccl", once."""
    if "fake-nccl" not in TRANSPORTS:
        TRANSPORTS.register(
            Transport(
                name="fake-nccl",
                text="NCCL's demands and promises on the fake accelerator",
                opened_by="tests.accelerator.nccl_transport:open_fake_nccl",
                device=NAME,
                carries_messages=True,
            )
        )


register()
