"""Embedding tables on servers, trained from a plan file: the same losses as with tables on every rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.results.store.record import BestPlan
from autotune.results.store.store import write_json
from autotune.workloads.plan import BatchPlan, CommPlan, Plan, ReducerKind
from autotune.workloads.plan.embedding import EmbeddingPlan, TablePlacement
from tests.mpi.launch import autotune, refused
from tests.mpi.test_pipeline_plans import predictor_of

PLAIN = Plan(batch=BatchPlan(samples=(24, 16, 24)))
BY_ROWS = replace(PLAIN, embedding=EmbeddingPlan())
DEDICATED = Plan(
    batch=BatchPlan(samples=(0, 40, 24)),
    embedding=EmbeddingPlan(servers=(0, 2), tables=(TablePlacement(name="tables.9", server=2),)),
)
SCHEDULED = replace(BY_ROWS, comm=CommPlan(reducer=ReducerKind.SCHEDULED))
CACHED = replace(PLAIN, embedding=EmbeddingPlan(cache_rows=200, look_ahead=8))
PLANS = {"plain": PLAIN, "by-rows": BY_ROWS, "dedicated": DEDICATED, "scheduled": SCHEDULED, "cached": CACHED}


def write_plans(tmp_path: Path) -> None:
    predictor = predictor_of("dlrm-tiny", "mixed4", 3, tmp_path)
    info, cluster = predictor.simulator.info, predictor.cluster
    for name, plan in PLANS.items():
        best = BestPlan(
            workload=info.name,
            workload_fingerprint=info.fingerprint,
            cluster=cluster.name,
            cluster_fingerprint=cluster.fingerprint(),
            plan=plan,
            step_s=1.0,
            speedup_over_default=None,
        )
        write_json(tmp_path / f"{name}.json", best)


def losses_of(name: str, tmp_path: Path) -> list[float]:
    arguments = ("--cluster", "mixed4", "--plan", f"{name}.json", "--steps", "6", "--rounds", "1", "--json")
    done = autotune(3, "train", "--workload", "dlrm-tiny", *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    losses: list[float] = json.loads(done.out)["losses"]
    return losses


@pytest.mark.mpi
def test_tables_on_servers_train_as_those_on_every_rank(tmp_path: Path) -> None:
    write_plans(tmp_path)
    assert losses_of("dedicated", tmp_path) == pytest.approx(losses_of("plain", tmp_path), rel=1e-5)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_servers_beside_other_parts_of_a_plan(tmp_path: Path) -> None:
    write_plans(tmp_path)
    expected = losses_of("plain", tmp_path)
    for name in PLANS:
        assert losses_of(name, tmp_path) == pytest.approx(expected, rel=1e-5), name


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_cannot_run_is_one_message(tmp_path: Path) -> None:
    write_plans(tmp_path)
    for num_ranks, command, word in (
        (3, ("train", "--online"), "without --online"),
        (1, ("simulate", "--ranks", "3"), "the simulator does not predict"),
    ):
        asked = ("--workload", "dlrm-tiny", "--cluster", "mixed4", "--plan", "by-rows.json")
        refused(autotune(num_ranks, *command, *asked, cwd=tmp_path), word)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_tries_tables_on_servers(tmp_path: Path) -> None:
    arguments = ("--cluster", "mixed4", "--trials", "1", "--steps", "2", "--rounds", "2", "--study", "one", "--json")
    done = autotune(2, "sweep", "--workload", "dlrm-tiny", *arguments, cwd=tmp_path, timeout_s=250)
    assert done.code == 0, done.err
    trials = json.loads(done.out)["trials"]
    assert [trial["state"] for trial in trials if trial["role"] == "servers"] == ["complete"]
