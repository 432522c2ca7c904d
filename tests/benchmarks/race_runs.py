"""Races of our plans against torch DDP: `python -m tests.benchmarks.race_runs [quick]` (needs root).

Most cells are in the lab. On this machine nothing is paced and nothing is shaped, so that no sleep can hide our own cost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AUTOTUNE = str(Path(sys.executable).with_name("autotune"))
KEPT = Path("results") / "published"
"""Below the working directory: races record the command that made them."""
WORKLOADS = ("vgg", "gpt", "resnet")
ALL, QUICK = dict.fromkeys(("mixed4", "slow-link4", "mixed-both4"), WORKLOADS), {"mixed4": ("vgg",)}
"""Workloads by cluster: mixed speeds, mixed links, both; each made a lab."""
BUDGET = ("--trials", "10", "--warmup", "2", "--steps", "3", "--rounds", "8", "--quiet")


def autotune(*arguments: str) -> None:
    subprocess.run([AUTOTUNE, *arguments], check=True)


@contextmanager
def lab(cluster: str) -> Iterator[tuple[str, ...]]:
    """A lab of that cluster; yields the arguments of `autotune` that run a command in it."""
    autotune("lab", "up", "--name", "race", "--cluster", cluster)
    try:
        yield ("lab", "run", "--name", "race", "--", AUTOTUNE)
    finally:
        autotune("lab", "down", "--name", "race")


def race(cells: dict[str, tuple[str, ...]], results: Path) -> None:
    for cluster, workloads in cells.items():
        with lab(cluster) as in_lab:
            for workload in workloads:
                job = ("race", "--workload", workload, "--cluster", cluster, *BUDGET, "--results", str(results))
                autotune(*in_lab, *job)


def main(arguments: list[str]) -> None:
    if arguments == ["quick"]:
        with tempfile.TemporaryDirectory() as folder:
            race(QUICK, Path(folder))
        return
    race(ALL, KEPT)
    for workload in WORKLOADS:
        job = ("--ranks", "2", "--workload", workload, "--cluster", "this-machine", *BUDGET, "--results", str(KEPT))
        autotune("race", *job)


if __name__ == "__main__":
    main(sys.argv[1:])
