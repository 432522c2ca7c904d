"""The steps of a user: sweep, report, best, train; one cluster, several clusters, a device too small for the default."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.jobs.context import capture_workload
from autotune.profilers.perfetto import read_trace
from autotune.profilers.ranges import PHASES
from autotune.profilers.timeline import Timeline
from autotune.workloads.registry import load_workload
from tests.mpi.launch import ROOT, autotune, refused

QUICK = ("--trials", "3", "--steps", "2", "--rounds", "1", "--json")


def read(tmp_path: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "autotune", *arguments, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OWN = ("--workload", "own_workload:factory", "--set", "width=256")
"""Wide enough for emulated devices and links to take longer than the real work behind them."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A finished sweep of a user's own workload over two clusters, and its reports."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "own_workload.py").write_text((ROOT / "examples" / "own_workload.py").read_text())
    done = autotune(2, "sweep", *OWN, "--cluster", "uniform4,mixed4", *QUICK, cwd=folder)
    assert done.code == 0, done.err
    return folder, json.loads(done.out)


@pytest.mark.mpi
def test_a_sweep_of_two_clusters_is_kept_and_reported(swept: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, reports = swept
    assert [report["cluster"] for report in reports] == ["uniform4-first2", "mixed4-first2"]
    for report in reports:
        assert report["workload"] == "own_workload:factory,width=256"
        assert report["label"] == "emulated"
        assert [row["name"] for row in report["comparison"]] == ["DDP default", "tuned DDP", "best plan"]
        assert report["trials"][0]["cpu_s_per_step"] > 0
    assert read(folder, "report") == sorted(reports, key=lambda report: report["cluster"])
    timelines = sorted(folder.glob("results/data/*/mixed4-first2/timelines/*.json"))
    spans = json.loads(timelines[-1].read_text())["spans"]
    assert {span["kind"] for span in spans} >= {"data", "forward", "backward", "wait", "optimizer", "comm"}
    assert {span["rank"] for span in spans} == {0, 1}


@pytest.mark.mpi
def test_the_kept_plan_is_used_by_train(swept: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = swept
    kept = read(folder, "best", "--cluster", "mixed4-first2")
    done = autotune(2, "train", *OWN, "--cluster", "mixed4", "--steps", "5", "--rounds", "1", "--json", cwd=folder)
    assert done.code == 0, done.err
    trained = json.loads(done.out)
    assert len(trained["losses"]) == 5
    assert trained["plan"] == kept[0]["plan"]


@pytest.mark.mpi
@pytest.mark.slow
def test_training_goes_through_a_scenario(swept: tuple[Path, list[dict[str, Any]]]) -> None:
    """The links carry a hundredth in steps 4 to 7, and recover. One more step is traced, with a plan that has several buckets."""
    folder, _ = swept
    (path,) = folder.glob("results/data/best/*@mixed4-first2.json")
    kept = json.loads(path.read_text())
    kept["plan"]["comm"] |= {"reducer": "bucketed", "bucket_bytes": 512}
    (folder / "buckets.json").write_text(json.dumps(kept))
    changes = "".join(f'[[change]]\nat = {at}\nhost = "*"\nbandwidth = {share}\n' for at, share in ((4, 0.01), (8, 1)))
    (folder / "dip.toml").write_text(changes)
    rest = ("--cluster", "mixed4", "--steps", "12", "--rounds", "1", "--json")
    traced = ("--plan", "buckets.json", "--trace", "run.json")
    done = autotune(2, "train", *OWN, "--replay", "dip.toml", *traced, *rest, cwd=folder)
    assert done.code == 0, done.err
    check_trace(read_trace(folder / "run.json"))
    trained = json.loads(done.out)
    assert [(s["first"], s["last"]) for s in trained["stretches"]] == [(0, 3), (4, 7), (8, 11)]
    before, during, after = (stretch["step_s"] for stretch in trained["stretches"])
    assert during > 3 * max(before, after)
    refused(autotune(2, "train", *OWN, "--replay", "link-dorp", *rest, cwd=folder), "did you mean 'link-drop'?")


@pytest.mark.mpi
@pytest.mark.slow
def test_what_is_decided_while_training_stands_in_report_and_trace(swept: tuple[Path, list[dict[str, Any]]]) -> None:
    """A link drops to a tenth, and all ranks run a link probe before an agreed step; samples and losses are unaffected."""
    folder, _ = swept
    (folder / "drop.toml").write_text("[[change]]\nat = 25\nhost = 1\nbandwidth = 0.1\n")
    rest = ("--cluster", "mixed4", "--steps", "70", "--rounds", "1", "--json")
    done = autotune(2, "train", *OWN, "--online", "--replay", "drop.toml", "--trace", "online.json", *rest, cwd=folder)
    assert done.code == 0, done.err
    trained = json.loads(done.out)
    assert len(trained["losses"]) == 70
    decisions = trained["decisions"]
    (found,) = (
        decision for decision in decisions if "carry 0.1 times" in decision["reason"] and not decision["switches"]
    )
    assert found["kind"] == "network"
    assert found["step"] > 25
    spans = [span for span in read_trace(folder / "online.json").spans if span.track == "decisions"]
    assert [span.kind for span in spans] == [decision["kind"] for decision in decisions]
    assert any("timing the links" in span.op for span in spans)


def check_trace(traced: Timeline) -> None:
    """It has every source, of both ranks and on one clock, and a bucket's ranges have the bytes of its collective."""
    for rank in (0, 1):
        own = traced.of_rank(rank)
        assert {span.track for span in own.spans} == {"host", "compute", "comm", "ranges", "ops"}
        ranges = [span for span in own.spans if span.kind == "range"]
        assert [span.op for span in ranges if span.op in PHASES] == list(PHASES)
        sent = [(span.op, span.num_bytes) for span in own.spans if span.kind == "comm"]
        assert len(sent) > 1
        assert [(f"post {op}", num_bytes) for op, num_bytes in sent] == [
            (span.op, span.num_bytes) for span in ranges if span.op.startswith("post ")
        ]
        assert "process_cpu" in {counter.name for counter in own.counters}
    ends_s = [max(span.end_s for span in traced.of_rank(rank).spans if span.kind == "comm") for rank in (0, 1)]
    assert abs(ends_s[0] - ends_s[1]) < 0.05 + traced.clock_error_s


@pytest.mark.slow
@pytest.mark.mpi
def test_misuse_and_damage_are_refused(swept: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """A plan made for another cluster, a changed search space, a corrupt record: exit 2 and one message each."""
    folder = tmp_path / "copy"
    shutil.copytree(swept[0], folder)
    (plan,) = folder.glob("results/data/best/*@mixed4-first2.json")
    done = autotune(2, "train", *OWN, "--cluster", "uniform4", "--plan", str(plan), cwd=folder)
    refused(done, "made for cluster 'mixed4-first2'", "'uniform4-first2'", "autotune sweep")
    done = autotune(2, "sweep", *OWN, "--cluster", "mixed4", "--allow-lossy", *QUICK, cwd=folder)
    refused(done, "another search space", "codecs", "--study")
    (records,) = folder.glob("results/data/*/mixed4-first2/records.jsonl")
    records.write_text("{broken\n" + records.read_text())
    done = autotune(2, "sweep", *OWN, "--cluster", "mixed4", *QUICK, cwd=folder)
    refused(done, "records.jsonl, line 1", "damaged")


@pytest.mark.mpi
@pytest.mark.slow
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
    searched = [trial["plan"] for trial in report["trials"] if trial["role"] == "search"]
    whole = [plan for plan in searched if plan["pipeline"] is None]  # stages hold a part of the model each
    assert whole
    assert all(plan["batch"]["samples"][1] <= 12 for plan in whole)
    assert report["best"]["ranks"][1]["peak_memory_bytes"] <= small
