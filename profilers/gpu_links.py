"""How the GPUs of a host are joined: PCIe and NVLink, as NVML reports it.

PCIe is stated at the fastest generation and width that GPU and slot agree on, since idle GPUs report less; a device gets its
nominal bandwidth, which real transfers reach to some 80 to 90 %. GPUs that reach each other over NVLink, directly or through
switches, form an island; each has the bandwidth of its links to one other: all of them through a switch, those of the
pair without. `autotune init --measure` replaces nominal by measured values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.profilers.nvml import session
from autotune.workloads.errors import MissingDependencyError

_PCIE_LANE_BYTES_PER_S: Mapping[int, float] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""By generation, one direction, after encoding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU in NVML's order."""

    name: str
    memory_bytes: float
    bus: str
    pcie_bytes_per_s: float | None
    """One direction; None: not reported."""
    nvlinks: tuple[tuple[str, float], ...] = ()
    """Of each active link: the bus of the GPU at its other end, or "" for a switch, and bytes per second in one direction."""


def find_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this host; none where there is no driver."""
    try:
        with session() as nvml:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return tuple(_gpu(nvml, handle) for handle in handles)
    except MissingDependencyError:
        return ()


def islands(gpus: Iterable[Gpu]) -> tuple[tuple[tuple[int, ...], ...], float | None]:
    """Places of the GPUs that NVLink joins, and the bandwidth of each to one other: the least of all."""
    listed = list(gpus)
    place = {gpu.bus: number for number, gpu in enumerate(listed)}
    joined = {number: number for number in range(len(listed))}
    speeds: list[float] = []
    on_switch = [number for number, gpu in enumerate(listed) if any(not bus for bus, _ in gpu.nvlinks)]
    for number in on_switch:
        _join(joined, on_switch[0], number)
        speeds.append(sum(speed for bus, speed in listed[number].nvlinks if not bus))
    for number, gpu in enumerate(listed):
        for bus in {bus for bus, _ in gpu.nvlinks if bus in place}:
            _join(joined, number, place[bus])
            speeds.append(sum(speed for other, speed in gpu.nvlinks if other == bus))
    found = [tuple(n for n in joined if joined[n] == root) for root in dict.fromkeys(joined.values())]
    found = [members for members in found if len(members) > 1]
    return tuple(found), min(speeds) if found else None


def _join(joined: dict[int, int], a: int, b: int) -> None:
    low, high = sorted((joined[a], joined[b]))
    for number, root in joined.items():
        if root == high:
            joined[number] = low


def _gpu(nvml: Any, handle: Any) -> Gpu:
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory_bytes=float(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        bus=_bus(nvml.nvmlDeviceGetPciInfo(handle)),
        pcie_bytes_per_s=_pcie(nvml, handle),
        nvlinks=tuple(_nvlinks(nvml, handle)),
    )


def _pcie(nvml: Any, handle: Any) -> float | None:
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except nvml.NVMLError:
        return None
    lane = _PCIE_LANE_BYTES_PER_S.get(int(generation))
    return lane * width if lane is not None and width else None


def _nvlinks(nvml: Any, handle: Any) -> Iterator[tuple[str, float]]:
    """Active links. A link beyond the device's last is an invalid argument; a device without NVLink supports none of it."""
    try:
        value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])[0]
        if value.nvmlReturn != nvml.NVML_SUCCESS or not (speed := float(value.value.uiVal) * 1e6):
            return
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if nvml.nvmlDeviceGetNvLinkState(handle, link):
                through = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
                yield "" if through else _bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)), speed
    except nvml.NVMLError:
        return


def _bus(info: Any) -> str:
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    return text.lower()
