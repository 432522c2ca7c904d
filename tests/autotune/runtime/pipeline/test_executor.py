"""The executor gives the gradients of the unsplit model, whatever the placement and the order."""

from __future__ import annotations

import pytest

from autotune.runtime.pipeline.batch_cut import BatchCut, even_cut
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.timing import timetable
from tests.autotune.runtime.pipeline.placements import (
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
from tests.autotune.runtime.pipeline.reference import TOLERANCE, batch_of, reference, relative_error, seeded
from workloads.models import gpt, resnet

WORKLOADS = {"gpt": gpt, "resnet": resnet}


def tiny(name, dtype="float64", **options):
    return WORKLOADS[name].workload(size="tiny", dtype=dtype, **options)


def check(placed, workload, table, cut, *, num_steps=2, loss=None):
    model, batch = seeded(workload), batch_of(workload, cut.total)
    expected, loss = reference(model, loss or workload.loss, batch, cut)
    ran = run(placed, model, table, batch, cut, num_steps=num_steps)
    assert relative_error(ran.gradients(), expected) < TOLERANCE[workload.dtype]
    assert ran.loss == pytest.approx(loss, rel=1e-5)


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
