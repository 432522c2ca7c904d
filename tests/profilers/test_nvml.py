"""NVIDIA GPUs without one: a library played in Python for every fault, and one in C that the real loader finds."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from autotune.profilers.nvml import THROTTLE_REASONS, UNITS, open_nvml, throttle_reasons
from autotune.profilers.observer import MeteredDevice, Observer, Sampler, Unavailable
from tests.profilers.fake_nvml import FIRST, SECOND, build_library

ROOT = Path(__file__).parents[2]
BARE = "5fd4f087-86f3-7a43-b711-4771313afc50"
UUID = f"GPU-{BARE}"
OTHER = "GPU-0d47d4ab-62a5-4f2c-8b84-0a7b8a4ff0e1"
NOT_SUPPORTED, LOST = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST
Readings = dict[str, int | None]


def a100(**changes: int | None) -> Readings:
    """What a GPU answers by function (and argument); None is Not Supported."""
    readings: Readings = {
        "UtilizationRates": 40,
        "MemoryInfo": 2**30,
        "PowerUsage": 250_000,
        "TotalEnergyConsumption": 5_000,
        "ClockInfo 1": 1410,
        "ClockInfo 2": 1215,
        "CurrentClocksEventReasons": 0x24,
        "NvLinkState": 1,
        "FieldValues 138": 10,
        "FieldValues 139": 20,
        "PcieThroughput 0": 300,
        "PcieThroughput 1": 400,
    }
    return {**readings, **changes}


class FakeLibrary:
    """Stands where pynvml keeps the loaded library: functions write through pointers and return a code."""

    def __init__(self, gpus: Mapping[str, Readings]) -> None:
        self.gpus = gpus
        self.init_code = 0
        self.lost = False
        self.absent = {"nvmlDeviceGetCurrentClocksThrottleReasons"}
        self.num_open = 0

    def __getattr__(self, function: str) -> Any:
        if function in self.absent:
            raise AttributeError(function)
        own = getattr(type(self), f"_{function.removesuffix('_v2')}", None)
        return functools.partial(own, self) if own else functools.partial(self._read, function)

    def _nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802 - NVML's name
        self.num_open += self.init_code == 0
        return self.init_code

    def _nvmlShutdown(self) -> int:  # noqa: N802
        if self.num_open == 0:
            return int(pynvml.NVML_ERROR_UNINITIALIZED)
        self.num_open -= 1
        return 0

    def _nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return f"error {code}".encode()

    def _nvmlDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = len(self.gpus)
        return 0

    def _nvmlDeviceGetHandleByIndex(self, index: Any, out: Any) -> int:  # noqa: N802
        ctypes.c_void_p.from_buffer(out._obj).value = index.value + 1
        return 0

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> int:  # noqa: N802
        if (given := uuid.value.decode()) not in self.gpus:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        return self._nvmlDeviceGetHandleByIndex(ctypes.c_uint(list(self.gpus).index(given)), out)

    def _nvmlDeviceGetUUID(self, gpu: Any, out: Any, _size: int) -> int:  # noqa: N802
        out.value = list(self.gpus)[ctypes.cast(gpu, ctypes.c_void_p).value - 1].encode()
        return 0

    def _nvmlDeviceGetFieldValues(self, gpu: Any, _count: int, out: Any) -> int:  # noqa: N802
        field = out._obj[0]
        assert field.scopeId == 2**32 - 1, "all links together"
        reading = self._reading(gpu, f"FieldValues {field.fieldId}")
        field.value.ullVal, field.nvmlReturn = (0, NOT_SUPPORTED) if reading is None else (reading, 0)
        return LOST if self.lost else 0

    def _nvmlDeviceGetNvLinkState(self, gpu: Any, link: int, out: Any) -> int:  # noqa: N802
        if link >= 2:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._read("nvmlDeviceGetNvLinkState", gpu, out)

    def _read(self, function: str, gpu: Any, *arguments: Any) -> int:
        *selectors, out = arguments
        key = " ".join([function.removeprefix("nvmlDeviceGet"), *(str(selector.value) for selector in selectors)])
        reading = self._reading(gpu, key)
        if self.lost or reading is None:
            return int(LOST if self.lost else NOT_SUPPORTED)
        field = {"UtilizationRates": "gpu", "MemoryInfo": "used"}.get(key, "value")
        setattr(out._obj, field, reading)
        return 0

    def _reading(self, gpu: Any, key: str) -> int | None:
        return list(self.gpus.values())[ctypes.cast(gpu, ctypes.c_void_p).value - 1][key]


def load(monkeypatch: pytest.MonkeyPatch, gpus: Mapping[str, Readings]) -> FakeLibrary:
    """Make pynvml assume that it has loaded the library."""
    library = FakeLibrary(gpus)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return library


def availability(observed: Observer | Sampler) -> dict[str, str]:
    return {metric.name: metric.availability for metric in observed.metrics}


def reason(observed: Observer) -> str:
    assert isinstance(observed, Unavailable)
    assert set(availability(observed)) == set(UNITS)
    return observed.reason


# --- what is read --------------------------------------------------------------------------------------------------------


def test_every_metric_is_read_in_si_units_and_totals_count_from_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = a100()
    load(monkeypatch, {UUID: gpu})
    opened = open_nvml(UUID)
    gpu |= {"TotalEnergyConsumption": 7_500, "FieldValues 138": 11, "FieldValues 139": 23}
    assert opened.sample() == {
        "gpu_utilisation": 40.0,
        "gpu_memory_used": 2.0**30,
        "gpu_power": 250.0,
        "gpu_energy": 2.5,
        "gpu_sm_clock": 1.41e9,
        "gpu_memory_clock": 1.215e9,
        "gpu_throttle_reasons": float(0x24),
        "gpu_nvlink_tx": 1024.0,
        "gpu_nvlink_rx": 3072.0,
        "gpu_pcie_tx": 3e5,
        "gpu_pcie_rx": 4e5,
    }
    assert availability(opened) == dict.fromkeys(UNITS, "available")
    assert {metric.name: metric.unit for metric in opened.metrics} == UNITS


@pytest.mark.parametrize("given", [UUID, BARE, BARE.upper(), f"GPU-{BARE.upper()}", f" {UUID}\n"])
def test_a_gpu_is_found_by_its_uuid_however_it_is_written_and_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    load(monkeypatch, {OTHER: a100(UtilizationRates=1), UUID: a100(UtilizationRates=77)})
    assert open_nvml(given).sample()["gpu_utilisation"] == 77.0


@pytest.mark.parametrize("given", [BARE, f"MIG-{BARE}"])
def test_a_mig_slice_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    load(monkeypatch, {f"MIG-{BARE}": a100(UtilizationRates=None)})
    opened = open_nvml(given)
    assert availability(opened)["gpu_utilisation"] == "unavailable (Not Supported)"
    assert opened.sample()["gpu_memory_used"] == 2.0**30


@pytest.mark.parametrize(
    ("function", "metric"),
    [
        ("UtilizationRates", "gpu_utilisation"),
        ("MemoryInfo", "gpu_memory_used"),
        ("PowerUsage", "gpu_power"),
        ("ClockInfo 1", "gpu_sm_clock"),
        ("ClockInfo 2", "gpu_memory_clock"),
        ("CurrentClocksEventReasons", "gpu_throttle_reasons"),
        ("FieldValues 138", "gpu_nvlink_tx"),
        ("FieldValues 139", "gpu_nvlink_rx"),
        ("PcieThroughput 0", "gpu_pcie_tx"),
        ("PcieThroughput 1", "gpu_pcie_rx"),
    ],
)
def test_a_metric_that_is_not_supported_is_the_only_one_missing(
    monkeypatch: pytest.MonkeyPatch, function: str, metric: str
) -> None:
    load(monkeypatch, {UUID: a100(**{function: None})})
    opened = open_nvml(UUID)
    assert availability(opened)[metric] == "unavailable (Not Supported)"
    assert set(opened.sample()) == set(UNITS) - {metric}


def test_energy_is_integrated_from_power_where_there_is_no_counter_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """250 W, then 350 W after 2 s: 600 J."""
    gpu, now_s = a100(TotalEnergyConsumption=None), iter([10.0, 12.0])
    load(monkeypatch, {UUID: gpu})
    opened = open_nvml(UUID, clock=lambda: next(now_s))
    gpu["PowerUsage"] = 350_000
    assert opened.sample()["gpu_energy"] == 600.0
    assert availability(opened)["gpu_energy"] == "available (integrated from power, energy counter: Not Supported)"


def test_without_power_and_counter_there_is_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, {UUID: a100(TotalEnergyConsumption=None, PowerUsage=None)})
    opened = open_nvml(UUID)
    assert availability(opened)["gpu_energy"] == "unavailable (Not Supported)"
    assert "gpu_energy" not in opened.sample()


def test_a_gpu_whose_links_are_down_has_no_nvlink_bytes_instead_of_none_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, {UUID: a100(NvLinkState=0)})
    opened = open_nvml(UUID)
    assert availability(opened)["gpu_nvlink_tx"] == "unavailable (no active NVLink)"
    assert "gpu_nvlink_tx" not in opened.sample()


@pytest.mark.parametrize("size", [2**32, 2**64])
def test_counters_that_wrap_go_on_rising(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    gpu = a100(**{"TotalEnergyConsumption": size - 2_000, "FieldValues 138": size - 1})
    load(monkeypatch, {UUID: gpu})
    opened = open_nvml(UUID)
    gpu |= {"TotalEnergyConsumption": 3_000, "FieldValues 138": 1}
    sampled = opened.sample()
    assert (sampled["gpu_energy"], sampled["gpu_nvlink_tx"]) == (5.0, 2048.0)


def test_an_older_driver_names_its_throttle_reasons_by_the_old_function(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Readings = {**a100(), "CurrentClocksThrottleReasons": 0x8}
    library = load(monkeypatch, {UUID: gpu})
    library.absent = {"nvmlDeviceGetCurrentClocksEventReasons"}
    assert open_nvml(UUID).sample()["gpu_throttle_reasons"] == 8.0


@pytest.mark.parametrize(
    ("bitmask", "names"),
    [
        (0.0, ()),
        (1.0, ("idle",)),
        (float(0x44), ("software power cap", "hardware thermal slowdown")),
        (float(0x1001), ("idle", "unknown reason 0x1000")),
    ],
)
def test_throttle_reasons_are_named(bitmask: float, names: tuple[str, ...]) -> None:
    assert throttle_reasons(bitmask) == names


def test_every_throttle_reason_of_nvml_has_a_name() -> None:
    known = {value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksThrottleReason")}
    assert set(THROTTLE_REASONS) == known - {pynvml.nvmlClocksThrottleReasonNone, pynvml.nvmlClocksThrottleReasonAll}


# --- faults --------------------------------------------------------------------------------------------------------------


def test_a_gpu_lost_in_mid_run_ends_every_metric_and_keeps_the_points(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load(monkeypatch, {UUID: a100()})
    sampler = Sampler(open_nvml(UUID), rank=1)
    assert sampler.tick()
    library.lost = True
    assert [sampler.tick() for _ in range(10)] == [True] * 9 + [False], "PCIe is asked with every tenth sample only"
    assert availability(sampler) == dict.fromkeys(UNITS, "unavailable (GPU is lost)")
    assert {counter.name: len(counter.points) for counter in sampler.counters()} == dict.fromkeys(UNITS, 1)


def test_without_the_package_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert reason(open_nvml(UUID)) == "NVIDIA GPUs are read with nvidia-ml-py: pip install nvidia-ml-py"


def test_without_the_library_the_reason_is_the_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_name: str) -> None:
        raise OSError("cannot open shared object file")

    load(monkeypatch, {})
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    assert reason(open_nvml(UUID)).startswith(
        "NVML does not start: NVML Shared Library Not Found: install the NVIDIA driver"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "the driver was updated while loaded: reboot"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded: load the driver: modprobe nvidia"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML does not start: Unknown Error"),
    ],
)
def test_a_driver_that_does_not_start_is_the_reason_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: str
) -> None:
    load(monkeypatch, {UUID: a100()}).init_code = code
    assert expected in reason(open_nvml(UUID))


@pytest.mark.parametrize(
    ("gpus", "seen"), [({}, "no device"), ({OTHER: a100(), f"{OTHER}2": a100()}, f"{OTHER}, {OTHER}2")]
)
def test_a_uuid_that_no_gpu_has_is_listed_beside_those_that_exist(
    monkeypatch: pytest.MonkeyPatch, gpus: Mapping[str, Readings], seen: str
) -> None:
    library = load(monkeypatch, gpus)
    assert reason(open_nvml(UUID)) == f"no NVIDIA device has the UUID {UUID!r}: NVML sees {seen}"
    assert library.num_open == 0


def test_nvml_is_shut_down_once_for_each_device_that_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load(monkeypatch, {UUID: a100(), OTHER: a100()})
    first, second = open_nvml(UUID), open_nvml(OTHER)
    first.close()
    first.close()
    assert library.num_open == 1
    assert isinstance(second, MeteredDevice)
    second.close()
    assert library.num_open == 0


# --- the real loader -----------------------------------------------------------------------------------------------------

PROGRAM = """
import contextlib, json, sys, time
from autotune.profilers.nvml import open_nvml
from autotune.profilers.observer import Sampler

def enough(sampler):
    lost = not any(metric.available for metric in sampler.metrics)
    return lost or any(len(counter.points) >= 4 for counter in sampler.counters())

with contextlib.ExitStack() as running:
    samplers = [
        running.enter_context(Sampler(open_nvml(uuid), rank=rank, rate_hz=100.0)) for rank, uuid in enumerate(sys.argv[1:])
    ]
    limit_s = time.monotonic() + 10
    while not all(map(enough, samplers)) and time.monotonic() < limit_s:
        time.sleep(0.01)
print(json.dumps([
    {
        "availability": {metric.name: metric.availability for metric in sampler.metrics},
        "values": {counter.name: [value for _, value in counter.points] for counter in sampler.counters()},
    }
    for sampler in samplers
]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


def observe(folder: Path, *uuids: str, **settings: int) -> list[dict[str, Any]]:
    """What a fresh process samples when the loader looks in `folder` first."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **{k: str(v) for k, v in settings.items()}}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *uuids]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return list(json.loads(done.stdout))


def test_two_gpus_are_sampled_through_the_real_loader(library: Path) -> None:
    second, first = observe(library, f"GPU-{SECOND}", FIRST)

    assert first["availability"] == dict.fromkeys(UNITS, "available")
    values = first["values"]
    samples = range(len(values["gpu_utilisation"]))
    assert len(samples) >= 2
    assert values["gpu_utilisation"] == [2.0 + i for i in samples]  # the probe was the first
    assert values["gpu_memory_used"] == [2.0**20 * (2 + i) for i in samples]
    assert values["gpu_power"] == [102.0 + i for i in samples]
    assert values["gpu_energy"] == [2.0 * (1 + i) for i in samples]  # the counter passes 2**64 here
    assert values["gpu_sm_clock"] == [1e6 * (1002 + i) for i in samples]
    assert values["gpu_nvlink_tx"] == [2048.0 * (1 + i) for i in samples]  # tx and rx take turns at one count
    assert set(values["gpu_throttle_reasons"]) == {4.0}
    assert (values["gpu_pcie_tx"][0], values["gpu_pcie_rx"][0]) == (10e3, 11e3)

    told = second["availability"]
    assert told["gpu_energy"] == "available (integrated from power, energy counter: Not Supported)"
    assert told["gpu_sm_clock"] == told["gpu_nvlink_rx"] == "unavailable (Not Supported)"
    energy = second["values"]["gpu_energy"]
    assert all(0 < earlier < later for earlier, later in itertools.pairwise(energy))
    assert "gpu_sm_clock" not in second["values"]


def test_a_gpu_lost_in_mid_run_leaves_the_other_and_the_program_alone(library: Path) -> None:
    first, second = observe(library, FIRST, SECOND, FAKE_LOST_AFTER=3)
    assert set(first["availability"].values()) == {"unavailable (GPU is lost)"}
    assert first["values"]["gpu_power"] == [102.0, 103.0]
    assert second["availability"]["gpu_power"] == "available"
    assert len(second["values"]["gpu_power"]) >= 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"FAKE_COUNT": 0}, "NVML sees no device"),
        ({"FAKE_INIT": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}, "the driver was updated while loaded"),
    ],
    ids=["no device", "driver mismatch"],
)
def test_a_library_without_a_device_or_a_matching_driver_is_a_reason(
    library: Path, settings: dict[str, int], expected: str
) -> None:
    (only,) = observe(library, FIRST, **settings)
    assert only["values"] == {}
    assert all(told.startswith("unavailable (") and expected in told for told in only["availability"].values())
