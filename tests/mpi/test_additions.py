"""A newcomer's codec, transport, knob and search method in a real sweep: `--load`, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import autotune

ROOT = Path(__file__).parents[2]
TINY = ("--workload", "mlp-tiny", "--cluster", "this-machine", "--warmup", "1", "--steps", "2", "--rounds", "2")


@pytest.mark.mpi
def test_additions_are_swept_recorded_and_reported(tmp_path: Path) -> None:
    load = [
        part for name in ("codec", "transport", "knob", "method") for part in ("--load", f"tests.additions.toy_{name}")
    ]
    results = ("--results", str(tmp_path / "results"))
    done = autotune(2, "sweep", *TINY, "--trials", "4", "--transports", "toy", *load, *results, "--json", cwd=ROOT)
    assert done.code == 0, done.err
    (records,) = tmp_path.glob("results/*/*/records.jsonl")
    searched = [json.loads(line) for line in records.read_text().splitlines()]
    tuned = [record for record in searched if record["role"] == "search"]
    assert tuned
    assert all(record["plan"]["comm"]["transport"] == "toy" for record in searched)
    assert all({"order", "codec"} <= set(record["params"]) for record in tuned if record["params"])
    assert {record["state"] for record in searched} == {"complete"}
    report = json.loads(done.out)
    (report,) = report if isinstance(report, list) else (report,)
    assert {"order", "codec"} <= set(report["searched"])


@pytest.mark.mpi
@pytest.mark.slow
def test_an_added_search_method_proposes_the_plans(tmp_path: Path) -> None:
    load = ("--load", "tests.additions.toy_method", "--load", "tests.additions.toy_codec")
    results = ("--results", str(tmp_path / "results"))
    done = autotune(2, "sweep", *TINY, "--sampler", "first", "--trials", "3", *load, *results, "--json", cwd=ROOT)
    assert done.code == 0, done.err
    (records,) = tmp_path.glob("results/*/*/records.jsonl")
    searched = [json.loads(line) for line in records.read_text().splitlines()]
    assert sum(record["role"] == "search" for record in searched) == 3
