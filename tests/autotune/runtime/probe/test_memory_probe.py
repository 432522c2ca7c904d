"""The memory meter of a CPU shows exactly what is held; one that reads 0 does not."""

from __future__ import annotations

import torch

from autotune.runtime.device import CPU, DeviceHandle
from autotune.runtime.probe.memory_probe import meter_memory
from autotune.workloads.plan import MIB


class Blind(DeviceHandle):
    def peak_bytes(self, metered_bytes: int) -> int:
        return 0


def test_the_accounting_is_exact() -> None:
    found = meter_memory(CPU)
    assert found.is_accounted
    assert found.metered_bytes == found.stated_bytes == 40 * MIB


def test_a_meter_that_reads_0() -> None:
    assert meter_memory(Blind(torch.device("cpu"))).metered_bytes == 0
