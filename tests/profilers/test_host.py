"""The host, its processors' energy, and AMD GPUs, read from a tree of files made for the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.profilers.amd import open_amd
from autotune.profilers.host import PackageEnergy, Share, open_host
from autotune.profilers.observer import Observer, Sampler, Unavailable

AMD_ADDRESS = "0000:03:00.0"
OTHER_ADDRESS = "0000:c3:00.0"


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def write_amd(sysfs: Path, address: str = AMD_ADDRESS, card: str = "card1", vendor: str = "0x1002") -> Path:
    """A device as the kernel lists it: the card's `device` is a link to the folder named by the PCI address."""
    folder = write(sysfs / "devices" / address, vendor=vendor, gpu_busy_percent=40, mem_info_vram_used=2**30)
    write(folder / "hwmon" / "hwmon3", power1_average=150_000_000)
    (sysfs / "class/drm" / card).mkdir(parents=True)
    (sysfs / "class/drm" / card / "device").symlink_to(folder)
    return folder


def write_package(sysfs: Path, zone: str, name: str, energy_uj: int, range_uj: int = 262_143_328_850) -> Path:
    return write(sysfs / "class/powercap" / zone, name=name, energy_uj=energy_uj, max_energy_range_uj=range_uj)


def availability(observer: Observer) -> dict[str, str]:
    return {metric.name: metric.availability for metric in observer.metrics}


# --- process and host --------------------------------------------------------------------------------------------------


def test_the_host_is_observed_beside_the_process(tmp_path: Path) -> None:
    write_package(tmp_path, "intel-rapl:0", "package-0", 1)
    opened = open_host(sysfs=tmp_path)
    assert availability(opened) == {
        "process_cpu": "available (of one core)",
        "process_memory": "available (resident set)",
        "host_cpu": "available (of all cores)",
        "host_memory_available": "available",
        "cpu_energy": "available (RAPL, all packages)",
    }
    sampled = opened.sample()
    assert sampled["process_memory"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert 0 < sampled["host_memory_available"] <= psutil.virtual_memory().total


def test_all_ranks_of_a_host_but_one_observe_their_process_only(tmp_path: Path) -> None:
    assert list(availability(open_host(host_wide=False, sysfs=tmp_path))) == ["process_cpu", "process_memory"]


def test_the_load_of_the_process_is_its_cpu_time_over_wall_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """0.15 s of CPU in 0.1 s is one core and a half."""
    cpu_s, now_s = iter([7.0, 7.15, 7.16]), iter([100.0, 100.1, 100.12])
    monkeypatch.setattr("autotune.profilers.host.time.process_time", lambda: next(cpu_s))
    opened = open_host(host_wide=False, clock=lambda: next(now_s), sysfs=tmp_path)
    assert opened.sample()["process_cpu"] == pytest.approx(150.0)
    assert "process_cpu" not in opened.sample()  # 20 ms say nothing


def test_the_load_of_the_host_is_busy_over_total_time_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 10 s of CPU time 4 were idle and 1 waiting for a disk; a guest's 3 s are within user time."""
    before = {"user": 0.0, "system": 0.0, "idle": 50.0, "iowait": 10.0, "guest": 0.0, "guest_nice": 0.0}
    after = {"user": 4.0, "system": 1.0, "idle": 54.0, "iowait": 11.0, "guest": 3.0, "guest_nice": 0.0}
    times = iter([before, after])

    class Times:
        def _asdict(self) -> dict[str, float]:
            return next(times)

    monkeypatch.setattr("autotune.profilers.host.psutil.cpu_times", Times)
    opened = open_host()
    assert opened.sample()["host_cpu"] == pytest.approx(50.0)


def test_a_share_waits_for_enough_of_the_whole_and_then_covers_all_of_it() -> None:
    times: Iterator[tuple[float, float]] = iter([(0.0, 0.0), (1.0, 2.0), (1.5, 5.0), (1.0, 10.0)])
    share = Share(lambda: next(times), least=5.0)
    assert [share(), share(), share(), share()] == [None, None, 30.0, 0.0]


# --- RAPL --------------------------------------------------------------------------------------------------------------


def test_energy_is_summed_over_packages_and_counts_neither_their_parts_nor_the_board(tmp_path: Path) -> None:
    first = write_package(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    second = write_package(tmp_path, "intel-rapl:1", "package-1", 9_000_000)
    others = [
        write_package(tmp_path, "intel-rapl:0:0", "core", 1_000_000),
        write_package(tmp_path, "intel-rapl:2", "psys", 1_000_000),
        write_package(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000),
    ]
    energy_j = PackageEnergy(tmp_path)
    assert energy_j() == 0.0
    for zone in others:
        write(zone, energy_uj=900_000_000)
    write(first, energy_uj=7_000_000)
    write(second, energy_uj=9_500_000)
    assert energy_j() == 2.5


def test_each_package_wraps_at_a_range_of_its_own(tmp_path: Path) -> None:
    first = write_package(tmp_path, "intel-rapl:0", "package-0", 98_000_000, range_uj=99_999_999)
    second = write_package(tmp_path, "intel-rapl:1", "package-1", 198_000_000, range_uj=199_999_999)
    energy_j = PackageEnergy(tmp_path)
    energy_j()
    write(first, energy_uj=1_000_000)
    write(second, energy_uj=2_000_000)
    assert energy_j() == 3.0 + 4.0


def test_without_rapl_energy_is_unavailable_and_the_rest_goes_on(tmp_path: Path) -> None:
    opened = open_host(sysfs=tmp_path)
    folder = tmp_path / "class/powercap"
    assert availability(opened)["cpu_energy"] == (
        f"unavailable (no RAPL package in {folder}: virtual machines have none)"
    )
    assert "cpu_energy" not in opened.sample()
    assert "process_memory" in opened.sample()


def test_an_energy_counter_that_may_not_be_read_is_unavailable_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not stop root, which tests may run as: the refusal is played."""
    zone = write_package(tmp_path, "intel-rapl:0", "package-0", 1)
    read_text = Path.read_text

    def refusing(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, os.strerror(13), str(path))
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", refusing)
    opened = open_host(sysfs=tmp_path)
    assert availability(opened)["cpu_energy"] == f"unavailable (Permission denied: {zone / 'energy_uj'})"


def test_a_package_that_goes_away_in_mid_run_ends_its_counter_and_keeps_the_points(tmp_path: Path) -> None:
    zone = write_package(tmp_path, "intel-rapl:0", "package-0", 0)
    sampler = Sampler(open_host(sysfs=tmp_path), rank=0)
    write(zone, energy_uj=4_000_000)
    assert sampler.tick()
    (zone / "energy_uj").unlink()
    assert sampler.tick()
    counters = {counter.name: [value for _, value in counter.points] for counter in sampler.counters()}
    assert counters["cpu_energy"] == [4.0]
    assert len(counters["process_memory"]) == 2
    assert not next(metric for metric in sampler.metrics if metric.name == "cpu_energy").available


# --- AMD GPUs ----------------------------------------------------------------------------------------------------------


def test_an_amd_gpu_is_read_in_si_units_and_its_energy_is_integrated_from_power(tmp_path: Path) -> None:
    folder = write_amd(tmp_path)
    now_s = iter([100.0, 102.0])
    opened = open_amd(sysfs=tmp_path, clock=lambda: next(now_s))
    write(folder / "hwmon" / "hwmon3", power1_average=250_000_000)
    sampled = opened.sample()
    assert sampled == {"gpu_utilisation": 40.0, "gpu_memory_used": 2.0**30, "gpu_power": 250.0, "gpu_energy": 400.0}
    assert availability(opened)["gpu_energy"] == "available (integrated from power1_average)"


def test_a_newer_amd_gpu_has_its_power_under_another_name(tmp_path: Path) -> None:
    hwmon = write_amd(tmp_path) / "hwmon" / "hwmon3"
    (hwmon / "power1_average").rename(hwmon / "power1_input")
    opened = open_amd(sysfs=tmp_path)
    assert opened.sample()["gpu_power"] == 150.0
    assert availability(opened)["gpu_power"] == "available (from power1_input)"


def test_files_that_an_amd_gpu_does_not_have_are_unavailable_one_by_one(tmp_path: Path) -> None:
    folder = write_amd(tmp_path)
    (folder / "gpu_busy_percent").unlink()
    (folder / "hwmon/hwmon3/power1_average").unlink()
    opened = open_amd(sysfs=tmp_path)
    assert opened.sample() == {"gpu_memory_used": 2.0**30}
    told = availability(opened)
    assert told["gpu_utilisation"] == f"unavailable (No such file or directory: {folder / 'gpu_busy_percent'})"
    missing = folder / "hwmon/hwmon*/power1_average"
    assert told["gpu_power"] == told["gpu_energy"] == f"unavailable (No such file or directory: {missing})"


def test_of_several_gpus_the_one_at_the_pci_address_is_read(tmp_path: Path) -> None:
    write_amd(tmp_path)
    write(write_amd(tmp_path, OTHER_ADDRESS, "card2"), gpu_busy_percent=75)
    assert open_amd(OTHER_ADDRESS.upper(), sysfs=tmp_path).sample()["gpu_utilisation"] == 75.0
    assert open_amd(AMD_ADDRESS, sysfs=tmp_path).sample()["gpu_utilisation"] == 40.0


def test_the_only_amd_gpu_needs_no_address_beside_gpus_of_others_and_its_own_sockets(tmp_path: Path) -> None:
    folder = write_amd(tmp_path)
    write_amd(tmp_path, OTHER_ADDRESS, "card0", vendor="0x10de")
    (tmp_path / "class/drm/card1-DP-1").mkdir()
    (tmp_path / "class/drm/card1-DP-1/device").symlink_to(write(tmp_path / "socket", vendor="0x1002"))
    write(folder, gpu_busy_percent=75)
    assert open_amd(sysfs=tmp_path).sample()["gpu_utilisation"] == 75.0


@pytest.mark.parametrize(
    ("addresses", "wanted", "reason"),
    [
        ((), "", "no AMD GPU in "),
        (
            (AMD_ADDRESS, OTHER_ADDRESS),
            "",
            f"2 AMD GPUs: say which by its PCI address, {AMD_ADDRESS} or {OTHER_ADDRESS}",
        ),
        ((AMD_ADDRESS,), "0000:99:00.0", f"no AMD GPU at PCI address '0000:99:00.0': there are {AMD_ADDRESS}"),
    ],
)
def test_an_amd_gpu_that_is_not_there_is_unavailable(
    tmp_path: Path, addresses: tuple[str, ...], wanted: str, reason: str
) -> None:
    for number, address in enumerate(addresses):
        write_amd(tmp_path, address, f"card{number}")
    opened = open_amd(wanted, sysfs=tmp_path)
    assert isinstance(opened, Unavailable)
    assert opened.reason.startswith(reason)
