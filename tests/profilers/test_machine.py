"""What a host has: its interfaces, and ports of InfiniBand from a folder like that of the kernel."""

from __future__ import annotations

from types import SimpleNamespace

import psutil

from autotune.profilers.machine import Nic, fastest_nics, find_machine


def test_interfaces_that_a_job_may_use(monkeypatch, tmp_path):
    def state(speed, *, isup=True):
        return SimpleNamespace(isup=isup, speed=speed)

    stats = {
        "lo": state(0),
        "docker0": state(10_000),
        "eth0": state(25_000),
        "eth1": state(25_000, isup=False),
        "eno2": state(1_000),
        "ib0": state(40_000),
    }
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    found = find_machine(tmp_path)
    assert found.nics == (Nic(name="eno2", bytes_per_s=1e9 / 8), Nic(name="eth0", bytes_per_s=25e9 / 8))
    for device, text in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "state").write_text(text)
    assert [nic.name for nic in fastest_nics(find_machine(tmp_path))] == ["mlx5_0:1", "mlx5_1:1"]


def test_this_machine():
    found = find_machine()
    assert found.num_cores >= 1
    assert found.memory_bytes > 0
    assert found.host
