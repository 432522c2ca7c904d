"""The emulation can be trusted: paced links and a lab's real ones agree on the best split and on the ranking of plans."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.lab import manage
from autotune.lab.hosts import Lab, lab_of
from autotune.results.judge.stats import spearman
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.workloads.cluster import CLUSTER_FOLDER, load_cluster
from tests.lab.test_lab import autotune
from tests.mpi.launch import ROOT, mpirun

PROGRAM = str(ROOT / "tests" / "lab" / "programs" / "rank_plans.py")
PUBLISH = "AUTOTUNE_PUBLISH"
"""Set by `nox -s agreement`: the figures are kept under results/published."""


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The hosts and links of a shipped cluster, with devices on which one split of 16 samples is clearly the best.

    Their speeds are as 6 to 5 to 3 to 2, and a quarter of the shipped ones, so that 16 samples take as long as 64. On the
    shipped speeds several splits end within 1 % of each other, and which comes first is chance.
    """
    text = (CLUSTER_FOLDER / f"{request.param}.toml").read_text()
    for name, speed in (("full", 0.6), ("two-thirds", 0.5), ("half", 0.3), ("quarter", 0.2)):
        stated = rf'(\[device\.{name}\]\nflops = ")[\d.]+( GFLOP/s"\nmemory_bandwidth = ")[\d.]+'
        text = re.sub(stated, rf"\g<1>{speed}\g<2>{speed}", text)
    path = tmp_path / f"{request.param}-six-five-three-two.toml"
    path.write_text(text)
    yield path
    manage.down(Lab(name="tc"))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", ["mixed4", "mixed-both4"], indirect=True)
def test_paced_and_lab_agree(cluster: Path, tmp_path: Path) -> None:
    done = mpirun(4, PROGRAM, str(cluster), str(tmp_path), cwd=tmp_path, timeout_s=400)
    assert done.code == 0, done.err
    paced = json.loads(done.out)
    manage.up(lab_of(load_cluster(str(cluster)), "tc"))
    job = (sys.executable, PROGRAM, str(cluster), str(tmp_path))
    ran = autotune("lab", "run", "--name", "tc", "--", *job, cwd=tmp_path, timeout_s=400)
    assert ran.returncode == 0, ran.stderr
    lab = json.loads(ran.stdout)
    assert (paced["label"], lab["label"]) == ("emulated", "lab, paced devices")
    found = agreement(paced, lab)
    if os.environ.get(PUBLISH):
        keep(cluster.stem, found)
    assert found["spearman"] >= 0.8, found
    assert found["largest_difference_of_best_split"] <= 1, found


def agreement(paced: dict[str, Any], lab: dict[str, Any]) -> dict[str, Any]:
    """Rank correlation over all plans; the best splits and by how many samples of a rank they differ."""
    best = [min(run["splits_s"], key=lambda row: row[-1])[:-1] for run in (paced, lab)]
    return {
        "spearman": spearman(paced["plans_s"], lab["plans_s"]),
        "best_split_paced": best[0],
        "best_split_lab": best[1],
        "largest_difference_of_best_split": max(abs(a - b) for a, b in zip(*best, strict=True)),
        "paced_s": paced["plans_s"],
        "lab_s": lab["plans_s"],
    }


def keep(name: str, found: dict[str, Any]) -> None:
    folder = ROOT / "results" / "published" / "agreement"
    folder.mkdir(parents=True, exist_ok=True)
    made_by = {"command": "nox -s agreement", "environment": describe_environment()}
    write_json(folder / f"{name}.json", made_by | found)
