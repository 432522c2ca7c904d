"""The known kernel: right, timed alike by all clocks on this CPU, and by clocks that are wrong on purpose."""

from __future__ import annotations

import time

import pytest
import torch

from autotune.runtime.device import CPU, DeviceHandle, Stamp
from autotune.runtime.probe import kernel_probe
from autotune.runtime.probe.kernel_probe import time_kernel


class TripleTime(DeviceHandle):
    """A device whose stamps count three times as fast."""

    def stamp(self) -> Stamp:
        return Stamp(3 * time.perf_counter())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_probe, "_LOOP_S", 0.05)


def test_the_clocks_of_a_cpu_agree() -> None:
    found = time_kernel(CPU)
    assert found.num_wrong == 0
    assert found.stamps_ratio == pytest.approx(1, abs=0.1)
    assert found.events_s is None
    assert found.flops_per_s == pytest.approx(2 * found.size**3 * found.count / found.host_s)


def test_a_clock_that_counts_three_times_as_fast() -> None:
    assert time_kernel(TripleTime(torch.device("cpu"))).stamps_ratio == pytest.approx(3, rel=0.1)


def test_a_kernel_that_computes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.mm

    def wrong(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        result = usual(a, b) if out is None else usual(a, b, out=out)
        result[3, 4] += 1
        return result

    monkeypatch.setattr(torch, "mm", wrong)
    assert time_kernel(CPU).num_wrong == 1
