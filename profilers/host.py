"""The host and this process: load and memory from psutil, energy of the processors from RAPL.

Process CPU is in % of one core and passes 100 with threads; host CPU is in % of all cores. RAPL is the kernel's
powercap tree (https://docs.kernel.org/power/powercap/powercap.html): one zone per processor package, AMD's too, under
the name intel-rapl. Subzones (cores, DRAM) and the whole-board zone are parts or wholes of these and are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from autotune.profilers.observer import Clock, Meter, MeteredDevice, Observer, Rise

SYSFS = Path("/sys")
SHORTEST_S = 0.05
"""A load over less time than this is noise: the kernel books CPU time in ticks of 4 or 10 ms."""


def open_host(*, host_wide: bool = True, clock: Clock = time.monotonic, sysfs: Path = SYSFS) -> Observer:
    """This process and its host.

    Ranks on one host see the same host: pass `host_wide=False` on all but one of them, or its energy counts twice.
    """
    meters = [*_process_meters(clock), *(_host_meters(sysfs) if host_wide else ())]
    return MeteredDevice("host", meters)


class Share:
    """The share of one counter in another since the last reading, in %; None while the other has grown too little."""

    def __init__(self, read: Callable[[], tuple[float, float]], least: float) -> None:
        self._read = read
        self._least = least
        self._last: tuple[float, float] | None = None

    def __call__(self) -> float | None:
        part, whole = self._read()
        if self._last is None:
            self._last = (part, whole)
        last_part, last_whole = self._last
        if whole - last_whole < self._least:
            return None
        self._last = (part, whole)
        return 100 * max(0.0, part - last_part) / (whole - last_whole)  # idle time may run back a tick


def _process_meters(clock: Clock) -> Iterator[Meter]:
    # process_time counts in ns where psutil's cpu_times counts in ticks, a tenth of a sample at 10 Hz.
    load = Share(lambda: (time.process_time(), clock()), least=SHORTEST_S)
    process = psutil.Process()
    yield Meter(name="process_cpu", unit="%", read=load, note="of one core")
    yield Meter(name="process_memory", unit="B", read=lambda: process.memory_info().rss, note="resident set")


def _host_meters(sysfs: Path) -> Iterator[Meter]:
    # psutil.cpu_percent would keep its last reading per thread: a probe in one thread and samples in another would not share it.
    load = Share(_host_cpu_s, least=SHORTEST_S * (psutil.cpu_count() or 1))
    yield Meter(name="host_cpu", unit="%", read=load, note="of all cores")
    yield Meter(name="host_memory_available", unit="B", read=lambda: psutil.virtual_memory().available)
    yield Meter(name="cpu_energy", unit="J", read=PackageEnergy(sysfs), note="RAPL, all packages")


def _host_cpu_s() -> tuple[float, float]:
    """Busy and total CPU seconds of all cores. Guests' time is within user time already."""
    times = psutil.cpu_times()._asdict()
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0), total_s


class PackageEnergy:
    """Joules of all processor packages since the first reading; each package's counter wraps at a range of its own."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._packages_uj: tuple[Rise, ...] = ()

    def __call__(self) -> float:
        self._packages_uj = self._packages_uj or self._find()
        return sum(package_uj() for package_uj in self._packages_uj) / 1e6

    def _find(self) -> tuple[Rise, ...]:
        zones = sorted((self._sysfs / "class/powercap").glob("intel-rapl:*"))
        packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        if not packages:
            raise LookupError(f"no RAPL package in {self._sysfs / 'class/powercap'}: virtual machines have none")
        return tuple(_energy_uj(package) for package in packages)


def _energy_uj(zone: Path) -> Rise:
    """A zone's counter, readable by root alone since CVE-2020-8694."""
    energy = zone / "energy_uj"
    largest_uj = int((zone / "max_energy_range_uj").read_text())
    return Rise(lambda: int(energy.read_text()), ranges=(largest_uj + 1,))
