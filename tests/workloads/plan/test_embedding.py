"""The embedding part of a plan: which ranks take part, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan, ReducerKind
from autotune.workloads.plan.embedding import EmbeddingPlan, TablePlacement
from autotune.workloads.serial import from_data, to_data

PLAN = Plan(
    batch=BatchPlan(samples=(0, 4, 0, 4)),
    embedding=EmbeddingPlan(servers=(2, 3), tables=(TablePlacement(name="a", server=3),)),
)


def test_servers_take_part() -> None:
    assert PLAN.used_ranks == (1, 2, 3)
    part = PLAN.part(PLAN.used_ranks)
    assert part.embedding == EmbeddingPlan(servers=(1, 2), tables=(TablePlacement(name="a", server=2),))
    assert part.batch.samples == (4, 0, 4)
    assert EmbeddingPlan().used_servers((0, 4, 0, 4)) == (1, 3)


def test_a_plan_without_it_is_the_plan_that_it_was() -> None:
    plain = replace(PLAN, embedding=None)
    assert plain.fingerprint() == Plan(batch=PLAN.batch).fingerprint()
    assert plain.fingerprint() != PLAN.fingerprint()
    assert from_data(Plan, to_data(PLAN), "plan") == PLAN


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (EmbeddingPlan(servers=(4,)), r"servers are \[4\]: name ranks from 0 to 3"),
        (EmbeddingPlan(servers=(1, 1)), "each once"),
        (EmbeddingPlan(tables=(TablePlacement(name="a", server=0),)), "table 'a' is on rank 0 but the servers are"),
        (EmbeddingPlan(tables=(TablePlacement(name="a", server=1),) * 2), "places table 'a' twice"),
    ],
)
def test_servers_that_do_not_fit_are_refused(embedding: EmbeddingPlan, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(PLAN, embedding=embedding).validate(num_ranks=4, global_batch=8)


def test_what_does_not_run_or_is_not_predicted() -> None:
    PLAN.check_runnable()
    with pytest.raises(SpecError, match="over gloo only"):
        replace(PLAN, comm=CommPlan(transport="mpi")).check_runnable()
    with pytest.raises(SpecError, match="reducer 'averaged'"):
        replace(PLAN, comm=CommPlan(reducer=ReducerKind.AVERAGED)).check_runnable()
    with pytest.raises(SpecError, match="does not predict"):
        PLAN.check_predictable()
