"""The executor gives the gradients of the unsplit model, whatever the placement and the order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autotune.runtime.placed.batch_cut import BatchCut, even_cut
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.memory import fitting_order
from autotune.schedule.portfolio import split_portfolio
from autotune.schedule.search import search
from autotune.schedule.timing import timetable
from autotune.workloads.blocks import split_backward
from autotune.workloads.models import gpt, resnet
from tests.autotune.runtime.placed.branches import (
    Parting,
    Towers,
    k_placed,
    parting_batch,
    towers_batch,
    towers_placed,
)
from tests.autotune.runtime.placed.placements import (
    Case,
    m_output,
    m_rows,
    m_vocabulary,
    nn_rows,
    nn_vocabulary,
    random_table,
    run,
    untied,
    v_placed,
    with_auxiliary_loss,
    x_placed,
)
from tests.autotune.runtime.placed.reference import TOLERANCE, batch_of, reference, relative_error, seeded

WORKLOADS = {"gpt": gpt, "resnet": resnet}


def tiny(name, dtype="float64", **options):
    return WORKLOADS[name].workload(size="tiny", dtype=dtype, **options)


def check(placed, workload, table, cut, *, loss=None):
    model, batch = seeded(workload), batch_of(workload, cut.total)
    compare(Case(placed=placed, model=model, table=table, batch=batch, cut=cut), loss or workload.loss)


def compare(case, loss):
    """Two steps: shapes are sent in the first and reused in the second."""
    expected, total = reference(case.model, loss, case.batch, case.cut)
    ran = run(case, num_steps=2)
    dtype = next(case.model.parameters()).dtype
    assert relative_error(ran.gradients(), expected) < TOLERANCE[dtype]
    assert ran.loss == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_a_chain_on_two_ranks(name, dtype):
    workload = tiny(name, dtype)
    placed = v_placed(workload, 2)
    orders = dict(classic_orders(placed.graph, find_chain(placed.graph), 4))
    check(placed, workload, timetable(placed.graph, 4, orders["1f1b"]), even_cut(16, 4))


def test_uneven_micro_batches_count_by_their_samples():
    workload = tiny("gpt")
    placed = v_placed(workload, 2)
    check(placed, workload, random_table(placed.graph, 3, 0), BatchCut(samples=((1, 5, 2),)))


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_two_directions(name, num):
    workload = tiny(name)
    placed = x_placed(workload, num)
    check(placed, workload, random_table(placed.graph, 3, num), even_cut(12, 3, 2))


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize(("name", "place"), [("gpt", m_rows), ("resnet", m_rows), ("resnet", nn_rows)])
def test_blocks_whose_samples_all_devices_share(name, place, num):
    workload = tiny(name)
    placed = place(workload, num)
    check(placed, workload, random_table(placed.graph, 3, num), even_cut(13, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num", [2, 4])
def test_a_vocabulary_on_all_devices(num, dtype):
    workload = untied(tiny("gpt", dtype))
    placed = m_vocabulary(workload, num)
    check(placed, workload, random_table(placed.graph, 3, num), even_cut(12, 3))
    placed = nn_vocabulary(workload, num)
    check(placed, workload, random_table(placed.graph, 3, num), even_cut(12, 3), loss=with_auxiliary_loss)


@pytest.mark.parametrize("num", [2, 4])
def test_an_output_layer_on_all_devices_tied_to_the_embedding(num):
    workload = tiny("gpt")
    placed = m_output(workload, num)
    check(placed, workload, random_table(placed.graph, 3, num), even_cut(12, 3))


def branched(name):
    torch.manual_seed(3)
    if name == "parting":
        return k_placed, Parting().double(), parting_batch(12)
    return towers_placed, Towers().double(), towers_batch(12)


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("name", ["parting", "towers"])
def test_two_branches(name, num):
    place, model, batch = branched(name)
    placed = place(num)
    table = random_table(placed.graph, 3, num)
    compare(Case(placed=placed, model=model, table=table, batch=batch, cut=even_cut(12, 3)), lambda m, b: m.loss(b))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("place", [v_placed, x_placed, m_rows, nn_rows, k_placed, towers_placed])
def test_any_valid_order_runs(place, seed):
    if place in (k_placed, towers_placed):
        placed, (_, model, batch) = place(4), branched("parting" if place is k_placed else "towers")
        cut, loss = even_cut(12, 5), lambda m, b: m.loss(b)
    else:
        workload = tiny("resnet")
        placed, model, batch, loss = place(workload, 4), seeded(workload), batch_of(workload, 12), workload.loss
        cut = even_cut(12, 5, placed.num_lanes)
    table = random_table(placed.graph, 5, seed)
    compare(Case(placed=placed, model=model, table=table, batch=batch, cut=cut), loss)


@pytest.mark.parametrize("place", [v_placed, x_placed, m_vocabulary, k_placed])
def test_searched_schedules(place):
    if place is k_placed:
        placed, (_, model, batch) = place(4), branched("parting")
        cut, loss = even_cut(12, 6), lambda m, b: m.loss(b)
    else:
        workload = untied(tiny("gpt"))
        placed, model, batch, loss = place(workload, 4), seeded(workload), batch_of(workload, 12), workload.loss
        cut = even_cut(12, 6, placed.num_lanes)
    table = search(placed.graph, 6, time_s=0.3).table
    compare(Case(placed=placed, model=model, table=table, batch=batch, cut=cut), loss)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_backward_in_two_parts(name):
    workload = tiny(name)
    placed = v_placed(workload, 4)
    blocks = [replace(block, split=(1.5, 1.5)) if block.memory < 0 else block for block in placed.graph.blocks]
    graph = replace(placed.graph, blocks=tuple(blocks))
    parts = split_backward(graph)
    members = {one.name: one.table for one in split_portfolio(graph, parts, 4, fitting_order(parts, 4))}
    assert "zero-bubble H1" in members
    for table in (members["zero-bubble H1"], random_table(parts, 4, 1)):
        check(placed, workload, table, even_cut(12, 4))


def test_batch_norm_is_over_micro_batches():
    workload = tiny("resnet", norm="batch")
    placed = v_placed(workload, 2)
    check(placed, workload, random_table(placed.graph, 3, 0), even_cut(12, 3))
