"""Every test here gets four fresh devices; without a C++ compiler all are skipped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.native import compiler

OF_ONE_JOB = ("autotune-complete", "autotune-stage-out", "autotune-stage-in", "autotune-watch")
"""Threads that end with the trainer or group that started them."""
END_S = 10.0


class Skipped(pytest.Module):
    """A module whose tests cannot run on this machine."""

    def collect(self) -> Any:
        pytest.skip("the fake accelerator needs a C++ compiler: install g++")


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    return Skipped.from_parent(parent, path=module_path) if compiler() is None else None


@pytest.fixture(autouse=True)
def _fresh_devices() -> Iterator[None]:
    from autotune.runtime import device
    from tests.accelerator import counts, devices, races, timeline

    devices.set_count(4)
    device.handle.cache_clear()
    counts.counts.reset()
    earlier = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - earlier:
        if thread.name in OF_ONE_JOB:
            thread.join(END_S)
            assert not thread.is_alive(), f"{thread.name} is left over: close the trainer and its groups"
    devices.restore()
    timeline.reset()
    races.forget()
    races.enable(True)
