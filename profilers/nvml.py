"""NVIDIA GPUs, read through NVML (nvidia-ml-py). The one module that imports pynvml.

Source: NVML's reference, https://docs.nvidia.com/deploy/nvml-api. What its readings mean:
- utilisation is the share of the last 1/6 to 1 s in which some kernel ran, not how full the device was;
- power is an average over 1 s on Ampere (but GA100) and later, so at 10 Hz only energy resolves short steps;
- PCIe throughput is measured over 20 ms for each direction, for which the call waits: those meters come last, and only
  with every tenth sample.
A MIG slice has few of these; the others are unavailable with NVML's reason. Left out: per-process figures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotune.profilers.observer import (
    Clock,
    Integral,
    Meter,
    MeteredDevice,
    Observer,
    Rise,
    Seldom,
    Unavailable,
    describe,
)
from autotune.workloads.errors import MissingDependencyError, SpecError

UNITS: Mapping[str, str] = {
    "gpu_utilisation": "%",
    "gpu_memory_used": "B",
    "gpu_power": "W",
    "gpu_energy": "J",
    "gpu_sm_clock": "Hz",
    "gpu_memory_clock": "Hz",
    "gpu_throttle_reasons": "bitmask",
    "gpu_nvlink_tx": "B",
    "gpu_nvlink_rx": "B",
    "gpu_pcie_tx": "B/s",
    "gpu_pcie_rx": "B/s",
}
"""Every metric and its unit. Energy and NVLink bytes count from when the device was opened."""

THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""NVML's clock event reasons by bit. The first two are no throttling: no higher clock was requested."""

_REMEDIES: Mapping[str, str] = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install the NVIDIA driver; in a container, start it with the driver's libraries",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the driver: modprobe nvidia",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was updated while loaded: reboot, or load its module anew",
    "NVML_ERROR_NO_PERMISSION": "this user may not open /dev/nvidiactl",
}
_ALL_LINKS = 2**32 - 1
_PCIE_EVERY = 10


def open_nvml(uuid: str, *, clock: Clock = time.monotonic) -> Observer:
    """The GPU with this UUID, as torch reports it; with or without "GPU-".

    By UUID, because CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's.
    """
    name = f"nvml {uuid}"
    try:
        nvml = _start_nvml()
    except MissingDependencyError as error:
        return Unavailable(name=name, units=UNITS, reason=str(error))
    try:
        return MeteredDevice(name, _meters(nvml, _find(nvml, uuid), clock), close=nvml.nvmlShutdown)
    except Exception as error:  # noqa: BLE001 - watching a device must not end a run, whatever its driver does
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
        return Unavailable(name=name, units=UNITS, reason=describe(error))


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """NVML, started and shut down again. MissingDependencyError where it does not start."""
    nvml = _start_nvml()
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def throttle_reasons(bitmask: float) -> tuple[str, ...]:
    """The names in a value of gpu_throttle_reasons; an unknown bit is named by its value."""
    bits = [1 << place for place in range(int(bitmask).bit_length()) if int(bitmask) >> place & 1]
    return tuple(THROTTLE_REASONS.get(bit, f"unknown reason {bit:#x}") for bit in bits)


def _start_nvml() -> Any:
    try:
        import pynvml  # noqa: PLC0415 - only where there may be a GPU
    except ImportError as error:
        raise MissingDependencyError("NVIDIA GPUs are read with nvidia-ml-py: pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        remedies = [remedy for code, remedy in _REMEDIES.items() if getattr(pynvml, code) == error.value]
        raise MissingDependencyError(": ".join([f"NVML does not start: {error}", *remedies])) from error
    return pynvml


def _find(nvml: Any, uuid: str) -> Any:
    """The device's handle. torch gives a UUID without prefix, for a MIG slice too."""
    bare = uuid.strip().removeprefix("GPU-").removeprefix("MIG-").lower()
    prefixes = ("MIG-",) if uuid.strip().startswith("MIG-") else ("GPU-", "MIG-")
    for prefix in prefixes:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(prefix + bare)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
    seen = ", ".join(_uuids(nvml)) or "no device"
    raise SpecError(f"no NVIDIA device has the UUID {uuid!r}: NVML sees {seen}")


def _uuids(nvml: Any) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            yield f"device {index} ({error})"


def _meters(nvml: Any, gpu: Any, clock: Clock) -> Iterator[Meter]:
    """The meters in the order they are read: slow ones last, so that the others are close to the sample's moment."""

    def meter(name: str, read: Callable[[], float | None]) -> Meter:
        return Meter(name=name, unit=UNITS[name], read=read)

    yield meter("gpu_utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    yield meter("gpu_memory_used", lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    yield meter("gpu_power", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)
    yield _energy(nvml, gpu, clock)
    yield meter("gpu_sm_clock", lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6)
    yield meter("gpu_memory_clock", lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * 1e6)
    yield meter("gpu_throttle_reasons", _throttle_bits(nvml, gpu))
    yield meter("gpu_nvlink_tx", _nvlink_bytes(nvml, gpu, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX))
    yield meter("gpu_nvlink_rx", _nvlink_bytes(nvml, gpu, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX))
    yield meter("gpu_pcie_tx", _pcie_bytes_per_s(nvml, gpu, nvml.NVML_PCIE_UTIL_TX_BYTES))
    yield meter("gpu_pcie_rx", _pcie_bytes_per_s(nvml, gpu, nvml.NVML_PCIE_UTIL_RX_BYTES))


def _energy(nvml: Any, gpu: Any, clock: Clock) -> Meter:
    """From the device's own counter (mJ) if it has one, else from power, which misses what happens between samples."""
    name = "gpu_energy"
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except nvml.NVMLError as error:
        power = Integral(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3, clock)
        return Meter(name=name, unit=UNITS[name], read=power, note=f"integrated from power, energy counter: {error}")
    energy_mj = Rise(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
    return Meter(name=name, unit=UNITS[name], read=lambda: energy_mj() / 1e3)


def _throttle_bits(nvml: Any, gpu: Any) -> Callable[[], float]:
    """Drivers before 535 have the function under its old name; the name is looked up once."""
    functions = [nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons]

    def read() -> int:
        try:
            return int(functions[0](gpu))
        except nvml.NVMLError_FunctionNotFound:
            if len(functions) == 1:
                raise
            del functions[0]
            return read()

    return read


def _pcie_bytes_per_s(nvml: Any, gpu: Any, direction: int) -> Callable[[], float | None]:
    """NVML documents KB/s without a definition; 1000 is the SI prefix."""
    return Seldom(lambda: nvml.nvmlDeviceGetPcieThroughput(gpu, direction) * 1e3, every=_PCIE_EVERY)


def _nvlink_bytes(nvml: Any, gpu: Any, field: int) -> Callable[[], float]:
    """Data bytes over all links. A device without a link may return 0, so links are checked first."""

    def count_kib() -> int:
        value = nvml.nvmlDeviceGetFieldValues(gpu, [(field, _ALL_LINKS)])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return int(value.value.ullVal)

    rise_kib = Rise(count_kib)
    linked = False

    def read() -> float:
        nonlocal linked
        linked = linked or _has_link(nvml, gpu)
        if not linked:
            raise LookupError("no active NVLink")
        return rise_kib() * 1024.0

    return read


def _has_link(nvml: Any, gpu: Any) -> bool:
    """Whether any link is up. A link beyond the device's last is an invalid argument."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                return True
        except nvml.NVMLError_InvalidArgument:
            return False
    return False
