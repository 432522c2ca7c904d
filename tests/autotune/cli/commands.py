"""What the tests of the command line share: a finished study, a kept plan, and a command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from autotune.results.store.record import BestPlan
from autotune.results.store.store import StudyStore
from autotune.workloads.cluster import load_cluster
from tests.results import sample


def make_study(results: Path, study: str = "vgg-mixed4", cluster: str = "mixed4") -> None:
    store = StudyStore(results / study / cluster)
    store.open_for_writing()
    store.write_info(sample.info())
    for record in sample.records():
        store.append(record)
    store.write_comparison(sample.comparison())
    store.close()


def kept(cluster: str = "mixed4") -> BestPlan:
    return BestPlan(
        workload="vgg",
        workload_fingerprint="0123456789ab",
        cluster=cluster,
        cluster_fingerprint=load_cluster(cluster).fingerprint(),
        plan=sample.plan(),
        step_s=0.213,
        speedup_over_default=2.31,
        speedup_interval=(2.28, 2.35),
        study="vgg-mixed4",
    )


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    how = ["-c", code] if code else ["-m", "autotune"]
    return subprocess.run([sys.executable, *how, *arguments], capture_output=True, text=True, timeout=60, check=False)
