"""The driver's counters are of the device that torch allocates on, or they are not."""

from __future__ import annotations

import torch

from autotune.profilers.observer import Meter, MeteredDevice, Observer, Unavailable
from autotune.runtime.device import DeviceHandle
from autotune.runtime.probe import counter_probe
from autotune.runtime.probe.counter_probe import CounterFacts, read_counters

STEP = 4 << 20
DEVICE = DeviceHandle(torch.device("cpu"))


def found_with(growth: int) -> CounterFacts:
    """A driver whose count of used memory grows by `growth` from one reading to the next."""
    readings = iter(range(10))

    def energy() -> float:
        raise RuntimeError("Not Supported")

    def opened(_: torch.device) -> Observer:
        used = Meter(name="gpu_memory_used", unit="B", read=lambda: 1e9 + growth * next(readings))
        return MeteredDevice("nvml A", [used, Meter(name="gpu_energy", unit="J", read=energy)])

    return read_counters(DEVICE, opened)


def test_memory_that_torch_allocates_appears_in_the_drivers_count() -> None:
    found = found_with(counter_probe.ALLOCATED_BYTES)
    assert found.grown_bytes == found.allocated_bytes
    assert found.unavailable == {"gpu_energy": "Not Supported"}
    assert found_with(0).grown_bytes == 0


def test_a_driver_that_cannot_be_asked_is_no_failure() -> None:
    found = read_counters(DEVICE, lambda _: Unavailable(name="nvml A", units={"gpu_power": "W"}, reason="no NVML"))
    assert (found.values, found.unavailable, found.grown_bytes) == ({}, {"gpu_power": "no NVML"}, None)
