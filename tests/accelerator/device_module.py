"""What `torch.get_device_module("fgpu")` answers: the names and meanings of torch.cuda."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from tests.accelerator import devices, streams
from tests.accelerator.streams import Place, native, valid_index


class DeviceProperties:
    """What torch.cuda.get_device_properties tells."""

    def __init__(self, index: int, total_memory: int) -> None:
        self.name, self.total_memory, self.uuid = f"Fake GPU {index}", total_memory, f"FGPU-{index:032x}"
        self.multi_processor_count, self.major, self.minor = 1, 0, 0

    def __repr__(self) -> str:
        return f"DeviceProperties(name={self.name!r}, total_memory={self.total_memory}, uuid={self.uuid!r})"


class DeviceModule(ModuleType):
    """Functions on the devices; current device and stream are per thread."""

    Stream, Event, StreamContext = streams.Stream, streams.Event, staticmethod(streams.stream)
    OutOfMemoryError = torch.OutOfMemoryError
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.default_stream)
    set_stream = staticmethod(streams.set_stream)
    stream = staticmethod(streams.stream)
    synchronize = staticmethod(streams.synchronize)
    device_count = staticmethod(devices.count)

    @staticmethod
    def is_available() -> bool:
        return devices.count() > 0

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def init() -> None:
        """Nothing to do."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def current_device() -> int:
        return native.device()

    @staticmethod
    def set_device(device: Place) -> None:
        native.set_device(valid_index(device))

    @staticmethod
    @contextmanager
    def device(device: Place) -> Iterator[None]:
        """Another current device for a while, in this thread."""
        before = native.device()
        if device is not None:
            native.set_device(valid_index(device))
        try:
            yield
        finally:
            native.set_device(before)

    @staticmethod
    def memory_allocated(device: Place = None) -> int:
        chosen = devices.all_devices[valid_index(device)]
        chosen.settle()
        return chosen.allocated_bytes

    memory_reserved = memory_allocated

    @staticmethod
    def max_memory_allocated(device: Place = None) -> int:
        return devices.all_devices[valid_index(device)].peak_bytes

    max_memory_reserved = max_memory_allocated

    @staticmethod
    def reset_peak_memory_stats(device: Place = None) -> None:
        chosen = devices.all_devices[valid_index(device)]
        chosen.settle()
        chosen.peak_bytes = chosen.allocated_bytes

    @staticmethod
    def empty_cache() -> None:
        """Nothing is cached."""

    @staticmethod
    def mem_get_info(device: Place = None) -> tuple[int, int]:
        chosen = devices.all_devices[valid_index(device)]
        chosen.settle()
        return chosen.memory_bytes - chosen.allocated_bytes, chosen.memory_bytes

    @staticmethod
    def get_device_name(device: Place = None) -> str:
        return f"Fake GPU {valid_index(device)}"

    @staticmethod
    def get_device_properties(device: Place = None) -> DeviceProperties:
        index = valid_index(device)
        return DeviceProperties(index, devices.all_devices[index].memory_bytes)

    @staticmethod
    def get_device_capability(device: Place = None) -> tuple[int, int]:
        return (0, 0)

    @staticmethod
    def get_rng_state(device: Place = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Place = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Random numbers are drawn from torch's generator for the CPU."""

    manual_seed_all = manual_seed

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]
