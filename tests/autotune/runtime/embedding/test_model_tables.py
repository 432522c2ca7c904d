"""Tables on servers are, step by step, those of a model in one process: every optimizer, workers, servers, placements."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from autotune.runtime.embedding.model_tables import ModelTables
from autotune.runtime.embedding.rules import SgdRule, rule_of
from autotune.workloads.errors import SpecError
from autotune.workloads.plan.embedding import EmbeddingPlan, TablePlacement
from tests.autotune.runtime.embedding.local_model import OPTIMIZERS, Model, largest_difference, plan_of, shares
from tests.gloo_ranks import on_ranks

TOLERANCE = 1e-10


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_tables_on_servers_are_those_of_one_process(kind: str) -> None:
    assert largest_difference(kind, 20, plan_of((0,), by_table=False), shares(2, 1)) < TOLERANCE


def test_workers_may_be_the_servers() -> None:
    assert largest_difference("adagrad", 20, EmbeddingPlan(), shares(3, 0)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_two_hundred_steps_on_workers_and_servers(kind: str, num_workers: int) -> None:
    for num_servers in (1, 2, 3):
        servers = tuple(range(num_servers))
        for by_table in (False, True):
            plan = plan_of(servers, by_table=by_table)
            assert largest_difference(kind, 200, plan, shares(num_workers, num_servers)) < TOLERANCE
    for by_table in (False, True):
        plan = plan_of(tuple(range(num_workers)), by_table=by_table)
        assert largest_difference(kind, 200, plan, shares(num_workers, 0)) < TOLERANCE


def test_a_table_that_the_model_has_not_is_named() -> None:
    def run(group):
        tables = ModelTables(Model(sparse=False), SgdRule(lr=0.1))
        tables.open(EmbeddingPlan(tables=(TablePlacement(name="table.9", server=0),)), (4,), group)

    (error,) = on_ranks(1, run)
    assert isinstance(error, SpecError)
    assert "'table.9' but the model's are tables.0" in str(error)


def test_lookups_name_every_table_and_only_rows_that_exist() -> None:
    def run(group, lookups):
        tables = ModelTables(nn.Sequential(nn.EmbeddingBag(5, 2)), SgdRule(lr=0.1))
        tables.open(EmbeddingPlan(), (1,), group)
        tables.begin([lookups], [lookups])

    offsets = torch.zeros(1, dtype=torch.int64)
    (error,) = on_ranks(1, lambda group: run(group, {"1": (torch.tensor([0]), offsets)}))
    assert "lookups name 1 but the model's embedding bags are 0" in str(error)
    (error,) = on_ranks(1, lambda group: run(group, {"0": (torch.tensor([5]), offsets)}))
    assert "table '0' has rows 0 to 4 but is asked for rows 5 to 5" in str(error)


def test_rows_of_the_tables_are_released() -> None:
    model = nn.Sequential(nn.EmbeddingBag(5, 2), nn.Linear(2, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    ModelTables(model, rule_of(optimizer, [model[0].weight]))
    assert [name for name, _ in model.named_parameters()] == ["1.weight", "1.bias"]
