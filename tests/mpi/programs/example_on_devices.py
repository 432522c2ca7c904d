"""Run by mpirun: an example, with the fake accelerator known: `python example_on_devices.py EXAMPLE [ARGUMENT ...]`."""

from __future__ import annotations

import runpy
import sys

import tests.accelerator.fgpu  # noqa: F401 - makes the device type known
from tests.accelerator import counts, devices

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
assert bool(counts.counts.launches()) == bool(devices.count()), "what was computed is on another device"
