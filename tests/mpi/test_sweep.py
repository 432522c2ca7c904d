"""The path a user walks: sweep, report, best, train; one mix, several mixes, a device too small for the default."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.bench import capture_workload
from tests.mpi.launch import ROOT, autotune
from workloads.registry import load_workload

QUICK = ("--trials", "3", "--steps", "2", "--rounds", "2", "--json")


def read(tmp_path: Path, *arguments: str) -> object:
    command = [sys.executable, "-m", "autotune", *arguments, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.mpi
def test_a_sweep_of_two_mixes_is_ranked_kept_reported_and_used(tmp_path: Path) -> None:
    sweep = ("sweep", "--workload", "mlp-tiny", "--cluster", "uniform4,mixed4", *QUICK)
    done = autotune(2, *sweep, cwd=tmp_path)
    assert done.code == 0, done.err
    reports = json.loads(done.out)
    assert [report["cluster"] for report in reports] == ["uniform4-first2", "mixed4-first2"]
    for report in reports:
        assert report["label"] == "emulated"
        assert [row["name"] for row in report["contest"]] == ["DDP default", "DDP tuned by hand", "best plan"]
        assert report["trials"][0]["cpu_s_per_step"] > 0
    assert read(tmp_path, "report") == sorted(reports, key=lambda report: report["cluster"])
    kept = read(tmp_path, "best", "--cluster", "mixed4-first2")
    assert [plan["workload"] for plan in kept] == ["mlp-tiny"]
    timelines = sorted(tmp_path.glob("results/data/mlp-tiny/mixed4-first2/timelines/*.json"))
    spans = json.loads(timelines[-1].read_text())["spans"]
    assert {span["kind"] for span in spans} == {"data", "forward", "backward", "wait", "optimizer", "comm"}
    assert {span["rank"] for span in spans} == {0, 1}
    train = ("train", "--workload", "mlp-tiny", "--cluster", "mixed4", "--steps", "5", "--rounds", "1", "--json")
    done = autotune(2, *train, cwd=tmp_path)
    assert done.code == 0, done.err
    trained = json.loads(done.out)
    assert len(trained["losses"]) == 5
    assert trained["plan"] == kept[0]["plan"]


@pytest.mark.mpi
def test_where_the_default_does_not_fit_the_search_keeps_to_what_does(tmp_path: Path) -> None:
    graph = capture_workload(load_workload("vgg-tiny"), seed=0)
    small = 4 * graph.param_bytes + 12.5 * graph.saved_bytes_per_sample
    devices = f'[device.big]\nflops = "2 GFLOP/s"\n[device.small]\nflops = "2 GFLOP/s"\nmemory = "{small:.0f} B"\n'
    hosts = '[[host]]\nname = "a"\ndevices = ["big"]\n[[host]]\nname = "b"\ndevices = ["small"]\n'
    (tmp_path / "small.toml").write_text(f'emulation = "paced"\n{devices}{hosts}')
    done = autotune(2, "sweep", "--workload", "vgg-tiny", "--cluster", "small.toml", *QUICK, cwd=tmp_path)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["default_problem"].startswith("does not fit the devices: rank 1 needs")
    assert report["counts"]["infeasible"] == 1
    assert all(trial["plan"]["batch"]["samples"][1] <= 12 for trial in report["trials"] if trial["role"] == "search")
    assert report["best"]["ranks"][1]["peak_memory_bytes"] <= small


@pytest.mark.mpi
def test_a_users_own_workload_runs_from_its_folder(tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_workload.py"
    (tmp_path / "own_workload.py").write_text(example.read_text())
    job = ("sweep", "--workload", "own_workload:factory", "--set", "width=16", *QUICK)
    done = autotune(2, *job, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["workload"] == "own_workload:factory,width=16"
