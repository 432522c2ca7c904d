"""Makes fake accelerators of this rank defective: `autotune doctor --load tests.accelerator.defective`.

FGPU_DEFECTS names the defects, each with the rank that has it: `sum:1,clock:0`.
"""

from __future__ import annotations

import os

import tests.accelerator.nccl_transport  # noqa: F401 - the transport "fake-nccl"
from autotune.runtime.launch.launcher import launcher_of
from tests.accelerator.defects import DEFECTS

for named in filter(None, os.environ.get("FGPU_DEFECTS", "").split(",")):
    name, _, rank = named.partition(":")
    if launcher_of(os.environ).rank == int(rank):
        DEFECTS[name]()
