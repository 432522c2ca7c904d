"""A transport of one module: gloo under another name."""

from __future__ import annotations

from autotune.runtime.transport.open_group import open_gloo
from autotune.workloads.plan.choices import TRANSPORTS, Transport


def open_toy(request):
    return open_gloo(request)


TRANSPORTS.register(
    Transport(name="toy", text="gloo under another name", opened_by="tests.additions.toy_transport:open_toy")
)
