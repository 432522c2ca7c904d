"""Islands of GPUs, and NVML's answers as GPUs: a library played in Python."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pynvml
import pytest

from autotune.profilers import gpu_links
from autotune.profilers.gpu_links import Gpu, find_gpus, islands


def gpu(number, *links):
    return Gpu(name="g", memory_bytes=1.0, bus=str(number), pcie_bytes_per_s=None, nvlinks=links)


def test_direct_links_make_islands():
    """0-1 by two links, 2-3 by one, 4 alone, and a link to a GPU that is not listed."""
    pairs = (gpu(0, ("1", 25.0), ("1", 25.0)), gpu(1, ("0", 25.0), ("0", 25.0)))
    more = (gpu(2, ("3", 25.0)), gpu(3, ("2", 25.0)), gpu(4, ("9", 25.0)))
    assert islands([*pairs, *more]) == (((0, 1), (2, 3)), 25.0)
    assert islands(pairs) == (((0, 1),), 50.0)
    assert islands([gpu(0), gpu(1)]) == ((), None)


def test_switches_join_all_with_all_links():
    assert islands([gpu(n, *[("", 25.0)] * 12) for n in range(8)]) == ((tuple(range(8)),), 300.0)


class FakeNvml:
    """Two GPUs on PCIe 4.0 x16; the first has two NVLinks to the second, the second's driver knows none."""

    NVML_SUCCESS, NVMLError = pynvml.NVML_SUCCESS, pynvml.NVMLError
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_SWITCH = 3, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH

    def nvmlDeviceGetCount(self):  # noqa: N802 - NVML's names
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"NVIDIA X" if handle else "NVIDIA Y"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(total=100 + handle)

    def nvmlDeviceGetPciInfo(self, handle):  # noqa: N802
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0A")

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        if handle:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 4

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):  # noqa: N802
        return 16

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        assert fields == [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        code = pynvml.NVML_ERROR_NOT_SUPPORTED if handle else pynvml.NVML_SUCCESS
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=25_781))]

    def nvmlDeviceGetNvLinkState(self, handle, link):  # noqa: N802
        if link == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):  # noqa: N802
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if link else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):  # noqa: N802
        return SimpleNamespace(busId=b"00000000:01:00.0A")


def test_what_nvml_reports(monkeypatch):
    @contextmanager
    def session():
        yield FakeNvml()

    monkeypatch.setattr(gpu_links, "session", session)
    first, second = find_gpus()
    assert (first.name, first.memory_bytes, first.pcie_bytes_per_s) == (
        "NVIDIA Y",
        100.0,
        pytest.approx(31.5e9, rel=1e-3),
    )
    assert first.nvlinks == ((second.bus, 25.781e9), ("", 25.781e9))
    assert (second.name, second.pcie_bytes_per_s, second.nvlinks) == ("NVIDIA X", None, ())


def test_no_driver_is_no_gpu():
    assert find_gpus() == () or all(one.memory_bytes > 0 for one in find_gpus())
