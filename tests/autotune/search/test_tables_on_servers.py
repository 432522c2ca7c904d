"""The plan of a search is measured with its tables on servers, and the faster of both is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.results.store.record import Role, TrialRecord, TrialState
from autotune.search.tables_on_servers import TablesOnServers, on_servers, without_servers
from autotune.search.tuner import ByTrials
from autotune.workloads.plan import BatchPlan, CommPlan, Plan, default_plan
from autotune.workloads.plan.embedding import EmbeddingPlan

PLAIN = Plan(batch=BatchPlan(samples=(4, 4)))


def trial(plan: Plan, step_s: float, role: Role = Role.SEARCH) -> TrialRecord:
    return TrialRecord(number=0, role=role, state=TrialState.COMPLETE, plan=plan, steps_s=(step_s, step_s * 1.001))


@pytest.mark.parametrize("served_s", [0.5, 2.0])
def test_the_faster_one_is_chosen(served_s: float) -> None:
    tuner = TablesOnServers(ByTrials())
    records = [trial(PLAIN, 1.0), trial(default_plan((4, 4)), 3.0, Role.DEFAULT)]
    proposal = tuner.propose(records)
    assert proposal is not None
    assert proposal.plan == replace(PLAIN, embedding=EmbeddingPlan())
    records.append(trial(proposal.plan, served_s, proposal.role))
    assert tuner.propose(records) is None
    chosen = tuner.choice(records)
    assert chosen is not None
    assert chosen.plan == (proposal.plan if served_s < 1.0 else PLAIN)
    assert without_servers(records) == records[:2]


def test_what_does_not_run_is_not_proposed() -> None:
    assert on_servers(replace(PLAIN, comm=CommPlan(transport="mpi"))) is None
