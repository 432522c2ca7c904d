"""Plans with pipeline stages as jobs: trained from a file, found by a sweep, ended on all ranks when one fails."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.jobs.predict import Predictor, make_predictors
from autotune.jobs.question import Question
from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan, default_plan
from tests.mpi.launch import autotune

PROGRAMS = Path(__file__).parent / "programs"
SLOW_LINKS = """
emulation = "paced"
[device.one]
flops = "2 GFLOP/s"
memory_bandwidth = "2 GB/s"
[[host]]
name = "a"
devices = ["one"]
uplink = "10 Mbit/s"
downlink = "10 Mbit/s"
[[host]]
name = "b"
devices = ["one"]
uplink = "10 Mbit/s"
downlink = "10 Mbit/s"
"""


def predictor_of(workload: str, cluster: str, num_ranks: int, tmp_path: Path) -> Predictor:
    question = Question(workload=workload, clusters=(cluster,), results=tmp_path, num_ranks=num_ranks)
    return make_predictors(question)[0]


def write_plan(predictor: Predictor, plan: Plan, path: Path) -> None:
    info, cluster = predictor.simulator.info, predictor.cluster
    best = BestPlan(
        workload=info.name,
        workload_fingerprint=info.fingerprint,
        cluster=cluster.name,
        cluster_fingerprint=cluster.fingerprint(),
        plan=plan,
        step_s=predictor.simulator.step_s(plan),
        speedup_over_default=None,
    )
    write_json(path, best)


def offered(predictor: Predictor, size: int, schedule: str) -> Plan:
    return next(
        plan
        for plan in predictor.staged(("gloo",)).plans
        if plan.pipeline is not None and (len(plan.pipeline.first_ops), plan.pipeline.schedule) == (size, schedule)
    )


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(("workload", "schedule"), [("digits", "1f1b"), ("gpt-tiny", "zero-bubble")])
def test_a_plan_with_stages_trains_and_its_prediction_stands_beside_it(
    workload: str, schedule: str, tmp_path: Path
) -> None:
    predictor = predictor_of(workload, "mixed4", 3, tmp_path)
    plan = offered(predictor, 3, schedule)
    write_plan(predictor, plan, tmp_path / "plan.json")
    arguments = ("--cluster", "mixed4", "--plan", "plan.json", "--steps", "5", "--rounds", "2", "--json")
    done = autotune(3, "train", "--workload", workload, *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert len(report["losses"]) == 5
    assert report["plan"]["pipeline"]["schedule"] == schedule
    expected = report["predicted"]
    step_s = predictor.total / report["samples_per_s"]
    assert step_s > 0.95 * expected["step_s"]  # devices are never faster than stated
    for rank, found in zip(expected["ranks"], report["ranks"], strict=True):
        assert found["peak_memory_bytes"] == pytest.approx(rank["peak_memory_bytes"], rel=0.1)
    assert (report["accuracy"] is not None) == (workload == "digits")
    assert {part["rank"] for part in report["breakdown"]["ranks"]} == {0, 1, 2}


@pytest.mark.mpi
@pytest.mark.slow
def test_stages_that_the_search_proposes_train_as_the_whole_model(tmp_path: Path) -> None:
    """On hosts of several ranks: the best plan, whose stages have replicas with uneven shares, and one that leaves a rank out."""
    predictor = predictor_of("gpt-tiny", "two-hosts-of-two", 4, tmp_path)
    proposed = sorted(predictor.staged(("gloo",)).plans, key=predictor.simulator.step_s)
    best, without_one = proposed[0], next(plan for plan in proposed if 0 in plan.batch.samples)
    assert best.pipeline is not None
    assert max(map(len, best.pipeline.stage_ranks)) > 1
    assert len(set(best.batch.samples)) > 1
    even_split = default_plan((predictor.total // 4,) * 4)
    losses = []
    for name, plan in (("whole", even_split), ("best", best), ("without one", without_one)):
        write_plan(predictor, plan, tmp_path / f"{name}.json")
        arguments = (
            "--cluster",
            "two-hosts-of-two",
            "--plan",
            f"{name}.json",
            "--steps",
            "4",
            "--rounds",
            "1",
            "--json",
        )
        done = autotune(4, "train", "--workload", "gpt-tiny", *arguments, cwd=tmp_path)
        assert done.code == 0, done.err
        losses.append(json.loads(done.out)["losses"])
    assert losses[0][-1] < losses[0][0]
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_sweep_finds_stages_where_links_are_slow(tmp_path: Path) -> None:
    """At 10 Mbit/s one device alone would be faster than both."""
    (tmp_path / "slow.toml").write_text(SLOW_LINKS.replace("10 Mbit/s", "30 Mbit/s"))
    arguments = ("--cluster", "slow.toml", "--trials", "3", "--steps", "3", "--rounds", "2", "--json")
    done = autotune(2, "sweep", "--workload", "vgg-tiny", *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    (path,) = tmp_path.glob("results/data/*/*/records.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    staged = [record for record in records if record["plan"]["pipeline"] is not None]
    assert staged
    for record in staged:
        assert record["state"] == "complete", record["reason"]
        assert record["predicted"]["step_s"] > 0
        assert max(rank["peak_memory_bytes"] for rank in record["ranks"]) == pytest.approx(
            record["predicted"]["peak_memory_bytes"], rel=0.1
        )
        assert record["breakdown"] is not None


@pytest.mark.mpi
@pytest.mark.slow
def test_a_model_that_fits_no_device_is_tuned_in_stages(tmp_path: Path) -> None:
    small = SLOW_LINKS.replace('memory_bandwidth = "2 GB/s"', 'memory_bandwidth = "2 GB/s"\nmemory = "1.6 MB"')
    (tmp_path / "small.toml").write_text(small.replace("10 Mbit/s", "1 Gbit/s"))
    arguments = ("--cluster", "small.toml", "--trials", "2", "--steps", "3", "--rounds", "2", "--json")
    done = autotune(2, "sweep", "--workload", "vgg-tiny", *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    (path,) = tmp_path.glob("results/data/*/*/records.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0]["state"] == "infeasible"
    searched = [record for record in records if record["role"] == "search"]
    assert searched
    assert all(record["plan"]["pipeline"] is not None and record["state"] == "complete" for record in searched)


@pytest.mark.mpi
def test_a_stage_that_fails_ends_the_job_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
    workload = "faulty_stage:factory"
    predictor = predictor_of(workload, "mixed4", 2, tmp_path)
    first = [op.name for op in predictor.simulator.graph.ops].index("2")
    pipeline = PipelinePlan(first_ops=(0, first), stage_ranks=((0,), (1,)), micro_batches=2)
    plan = Plan(batch=BatchPlan(samples=(8, 8)), pipeline=pipeline)
    write_plan(predictor, plan, tmp_path / "plan.json")
    environment = {"PYTHONPATH": f"{PROGRAMS}:{PROGRAMS.parents[2]}"}
    arguments = ("--cluster", "mixed4", "--plan", "plan.json", "--steps", "5", "--rounds", "2", "--timeout", "30")
    done = autotune(2, "train", "--workload", workload, *arguments, cwd=tmp_path, env=environment)
    assert done.code == 1
    assert len(done.errors) == 1
    assert "rank 1: ValueError: on purpose, in a stage" in done.errors[0]


@pytest.mark.mpi
def test_a_cut_inside_a_module_is_refused_by_input_validation(tmp_path: Path) -> None:
    predictor = predictor_of("gpt-tiny", "mixed4", 2, tmp_path)
    plan = offered(predictor, 2, "1f1b")
    assert plan.pipeline is not None
    allowed = predictor.cuts.first_ops if predictor.cuts is not None else ()
    inside = next(op for op in range(1, len(predictor.simulator.graph.ops)) if op not in allowed)
    write_plan(predictor, replace(plan, pipeline=replace(plan.pipeline, first_ops=(0, inside))), tmp_path / "plan.json")
    done = autotune(
        2, "train", "--workload", "gpt-tiny", "--cluster", "mixed4", "--plan", "plan.json", "--json", cwd=tmp_path
    )
    assert done.code == 2, done.err
    assert len(done.errors) == 1
    assert "inside a module: cut at one of" in done.errors[0]
