"""AMD GPUs, read from files of the amdgpu driver; no library and no permission needed.

Source: https://docs.kernel.org/gpu/amdgpu/thermal.html and .../driver-misc.html. Metrics carry the names they have for
NVIDIA GPUs, so that reports treat both alike. Left out: clocks (pp_dpm_sclk is a table for display) and PCIe
bytes (reading pcie_bw blocks for a second).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.profilers.host import SYSFS
from autotune.profilers.observer import Clock, Integral, Meter, MeteredDevice, Observer, Unavailable, describe
from autotune.workloads.errors import SpecError

UNITS: Mapping[str, str] = {"gpu_utilisation": "%", "gpu_memory_used": "B", "gpu_power": "W", "gpu_energy": "J"}
"""Every metric and its unit. Energy counts from when the device was opened."""
_VENDOR = "0x1002"


def open_amd(pci_address: str = "", *, clock: Clock = time.monotonic, sysfs: Path = SYSFS) -> Observer:
    """The GPU at this PCI address, such as "0000:03:00.0"; without one, the only AMD GPU of the host.

    By address, because HIP_VISIBLE_DEVICES renumbers torch's devices; torch has its parts as
    get_device_properties(i).pci_domain_id, .pci_bus_id and .pci_device_id.
    """
    name = f"amdgpu {pci_address}".strip()
    try:
        device = _find(pci_address, sysfs)
    except (OSError, SpecError) as error:
        return Unavailable(name=name, units=UNITS, reason=describe(error))
    return MeteredDevice(name, _meters(device, clock))


def _find(pci_address: str, sysfs: Path) -> Path:
    devices = {device.name: device for device in _devices(sysfs / "class/drm")}
    if not devices:
        raise SpecError(f"no AMD GPU in {sysfs / 'class/drm'}")
    if not pci_address and len(devices) > 1:
        raise SpecError(f"{len(devices)} AMD GPUs: say which by its PCI address, {' or '.join(devices)}")
    wanted = pci_address.strip().lower() or next(iter(devices))
    if wanted not in devices:
        raise SpecError(f"no AMD GPU at PCI address {pci_address!r}: there are {', '.join(devices)}")
    return devices[wanted]


def _devices(drm: Path) -> Iterator[Path]:
    """Folders of AMD devices, named by PCI address. Beside cards, drm lists their sockets as card0-DP-1."""
    for card in sorted(drm.glob("card*")):
        vendor = card / "device/vendor"
        if re.fullmatch(r"card\d+", card.name) and vendor.exists() and vendor.read_text().strip() == _VENDOR:
            yield (card / "device").resolve()


def _meters(device: Path, clock: Clock) -> Iterator[Meter]:
    power = _power_file(device)

    def power_w() -> float:
        return _number(power) / 1e6

    busy, memory = device / "gpu_busy_percent", device / "mem_info_vram_used"
    note = f"from {power.name}"
    yield Meter(name="gpu_utilisation", unit="%", read=lambda: _number(busy))
    yield Meter(name="gpu_memory_used", unit="B", read=lambda: _number(memory))
    yield Meter(name="gpu_power", unit="W", read=power_w, note=note)
    yield Meter(name="gpu_energy", unit="J", read=Integral(power_w, clock), note=f"integrated from {power.name}")


def _power_file(device: Path) -> Path:
    """Microwatts; newer devices have power1_input alone. Where there is neither, a path whose name says what is missing."""
    found = [path for name in ("power1_average", "power1_input") for path in device.glob(f"hwmon/hwmon*/{name}")]
    return found[0] if found else device / "hwmon/hwmon*/power1_average"


def _number(path: Path) -> int:
    return int(path.read_text())
