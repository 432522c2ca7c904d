"""Tables on servers are, step by step, those of a model in one process: every optimizer, workers, servers, placements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD

from autotune.runtime.embedding.model_tables import ModelTables
from autotune.runtime.embedding.rules import SgdRule, rule_of
from autotune.workloads.errors import SpecError
from autotune.workloads.plan.embedding import EmbeddingPlan, TablePlacement
from tests.autotune.runtime.embedding.local_model import (
    OPTIMIZERS,
    Model,
    largest_difference,
    plan_of,
    shares,
    train_on_ranks,
)
from tests.gloo_ranks import on_ranks

TOLERANCE = 1e-10


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_tables_on_servers_are_those_of_one_process(kind: str) -> None:
    assert largest_difference(kind, 20, plan_of((0,), by_table=False), shares(2, 1)) < TOLERANCE


def test_workers_may_be_the_servers() -> None:
    assert largest_difference("adagrad", 20, EmbeddingPlan(), shares(3, 0)) < TOLERANCE


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_that_workers_keep_are_those_of_one_process(kind: str) -> None:
    plan = EmbeddingPlan(cache_rows=60, look_ahead=6)
    assert largest_difference(kind, 30, plan, shares(2, 0)) < TOLERANCE
    plan = replace(plan_of((0, 1), by_table=True), cache_rows=20, look_ahead=9)
    assert largest_difference(kind, 30, plan, shares(1, 2)) < TOLERANCE


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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_two_hundred_steps_with_a_cache(kind: str, num_workers: int) -> None:
    for num_servers in (0, 1, 2, 3):
        servers = tuple(range(num_servers or num_workers))
        plan = replace(plan_of(servers, by_table=num_servers == 2), cache_rows=50, look_ahead=12)
        assert largest_difference(kind, 200, plan, shares(num_workers, num_servers)) < TOLERANCE


def test_rows_that_stay_are_not_sent() -> None:
    """One worker, whose server is another rank: at best it takes every row once and returns none."""
    plain = EmbeddingPlan(servers=(0,))
    sent = {
        cache_rows: sum(
            one.sent_bytes
            for one in train_on_ranks("sgd", 40, replace(plain, cache_rows=cache_rows, look_ahead=20), shares(1, 1))
        )
        for cache_rows in (0, 20, 150)
    }
    assert sent[20] < 0.9 * sent[0]
    assert sent[150] < 0.6 * sent[0]


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
        tables.begin([[lookups], [lookups]])

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
