"""The fake devices: how many, how fast, how much memory. By environment variables, so that ranks may differ, or by calls.

FGPU_COUNT devices per process (1; in a process of pytest none, until a test says otherwise, so that other tests of the
process see no accelerator); FGPU_FLOPS_PER_S and FGPU_BYTES_PER_S speeds; FGPU_LINK_BYTES_PER_S between host and
device; FGPU_LAUNCH_S what every operation takes at least; FGPU_MEMORY_BYTES; FGPU_SLOWNESS factors on durations, which
after FGPU_SLOWS_AFTER operations are FGPU_SLOWS_BY times as large. A comma separates values: by rank where the launcher
names one, else by index of the device.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass, field

import torch

from tests.accelerator import timeline

MAX_DEVICES = 64
_SPEEDS = ("flops_per_s", "bytes_per_s", "link_bytes_per_s", "launch_s", "slowness", "slows_after", "slows_by")
_SETTINGS = (*_SPEEDS, "memory_bytes")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID")


@dataclass(kw_only=True, slots=True)
class Device:
    """One device: its speeds may change while it runs."""

    index: int
    flops_per_s: float = 1e12
    bytes_per_s: float = 1e12
    link_bytes_per_s: float = 1e11
    launch_s: float = 2e-6
    slowness: float = 1.0
    """Factor on the duration of every operation but copies over the link."""
    slows_after: float = float("inf")
    """Operations after which it is slower."""
    slows_by: float = 1.0
    memory_bytes: int = 16 << 30
    num_operations: int = 0
    allocated_bytes: int = 0
    peak_bytes: int = 0
    freed: deque[int] = field(default_factory=deque)
    """Sizes of blocks freed and not yet subtracted: a destructor must not wait for a lock."""

    def next_slowness(self) -> float:
        """The factor of one more operation."""
        self.num_operations += 1
        return self.slowness * (self.slows_by if self.num_operations > self.slows_after else 1.0)

    def allocate(self, size: int) -> None:
        with timeline.LOCK:
            self.settle()
            if self.allocated_bytes + size > self.memory_bytes:
                raise torch.OutOfMemoryError(
                    f"fgpu:{self.index} out of memory: tried to allocate {size} bytes with {self.allocated_bytes} of "
                    f"{self.memory_bytes} bytes in use"
                )
            self.allocated_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def settle(self) -> None:
        with timeline.LOCK:
            while self.freed:
                self.allocated_bytes -= self.freed.popleft()


def _by_place(variable: str, default: float, index: int) -> float:
    values = [float(part) for part in os.environ.get(variable, "").split(",") if part]
    rank = next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name)), index)
    return values[rank % len(values)] if values else default


def _read(index: int) -> Device:
    plain = Device(index=index)
    read = {name: _by_place(f"FGPU_{name.upper()}", getattr(plain, name), index) for name in _SETTINGS}
    return Device(
        index=index, **{name: int(value) if name == "memory_bytes" else value for name, value in read.items()}
    )


all_devices = [_read(index) for index in range(MAX_DEVICES)]
_DEFAULT_COUNT = 0 if "pytest" in sys.modules else 1
_count = int(_by_place("FGPU_COUNT", _DEFAULT_COUNT, 0))


def count() -> int:
    return _count


def set_count(number: int) -> None:
    """How many devices this process sees from now on."""
    global _count  # noqa: PLW0603 - the process has one set of devices
    if not 0 <= number <= MAX_DEVICES:
        raise ValueError(f"{number} devices: choose 0 to {MAX_DEVICES}")
    _count = number


def configure(index: int, **values: float) -> None:
    """Change speeds or memory of a device, also while it runs: `configure(0, slowness=3.0)`."""
    for name, value in values.items():
        if name not in _SETTINGS:
            raise ValueError(f"a device has no {name!r}")
        setattr(all_devices[index], name, value)


def restore() -> None:
    """Speeds, memory and count as the environment says."""
    set_count(int(_by_place("FGPU_COUNT", _DEFAULT_COUNT, 0)))
    for device in all_devices:
        plain = _read(device.index)
        device.num_operations = 0
        for name in _SETTINGS:
            setattr(device, name, getattr(plain, name))
