"""Plans with pipeline stages run: uneven replicas have the gradients of the unsplit model."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import groupby

import pytest
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune.runtime.placed.batch_cut import BatchCut
from autotune.runtime.placed.plan_job import lanes_of, plan_job
from autotune.workloads.capture import capture
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.errors import SpecError
from autotune.workloads.models import gpt, resnet
from autotune.workloads.models.base import SupervisedWorkload
from autotune.workloads.pass_names import parse_pass
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan, default_plan
from tests.autotune.runtime.placed.placements import Case, Placed, run
from tests.autotune.runtime.placed.reference import TOLERANCE, batch_of, reference, relative_error, seeded
from tests.autotune.simulate.test_closed_forms import make_simulator


def costs(workload):
    model = seeded(workload)
    tensors = workload.dataset().tensors
    return capture(model, lambda n: workload.loss(model, tuple(one[:n] for one in tensors)))


def test_lanes_end_where_any_share_ends():
    pipeline = PipelinePlan(first_ops=(0, 3), stage_ranks=((0, 1), (2, 3)), micro_batches=2)
    assert lanes_of(pipeline, (12, 4, 6, 10)) == [(3, (0, 2)), (3, (0, 3)), (2, (1, 3))]


SEARCHED = ("F0 F1 B1 B0", "F1 F0 I1 I0 W0 W1")
"""No classic order, and one that splits the backward of one stage only."""


SCHEDULES = [
    pytest.param(
        name, schedule, marks=pytest.mark.slow if (name, schedule) in (("resnet", "gpipe"), ("gpt", "1f1b")) else ()
    )
    for name in ("gpt", "resnet")
    for schedule in ("gpipe", "1f1b", "zero-bubble", "searched")
]


@pytest.mark.parametrize(("name", "schedule"), SCHEDULES)
@pytest.mark.parametrize(
    ("ranks", "samples"), [(((0, 1), (2,)), (12, 4, 16)), (((0, 1), (2, 3)), (12, 4, 6, 10)), (((1,), (0,)), (16, 16))]
)
def test_uneven_replicas_are_exact(name, ranks, samples, schedule):
    workload = {"gpt": gpt, "resnet": resnet}[name].workload(size="tiny", dtype="float64", global_batch=16)
    graph = costs(workload)
    names = [op.name for op in graph.ops]
    first = names.index("2") + 1 if name == "gpt" else names.index("3") + 1
    pipeline = PipelinePlan(first_ops=(0, first), stage_ranks=ranks, micro_batches=2, schedule=schedule)
    if schedule == "searched":
        pipeline = replace(pipeline, order=SEARCHED)
    job = plan_job(workload, Plan(batch=BatchPlan(samples=samples), pipeline=pipeline), graph)
    model, batch, cut = seeded(workload), batch_of(workload, 16), BatchCut(samples=job.samples)
    expected, total = reference(model, workload.loss, batch, cut)
    placed = Placed(graph=job.table.graph, assemble=job.assemble)
    ran = run(Case(placed=placed, model=model, table=job.table, batch=batch, cut=cut), num_steps=2)
    assert relative_error(ran.gradients(), expected) < TOLERANCE[workload.dtype]
    assert ran.loss == pytest.approx(total)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble", "searched"])
@pytest.mark.parametrize(
    ("ranks", "samples", "sliced"),
    [
        (((1,), (0,)), (16, 16), False),
        (((0, 1), (2, 3)), (12, 4, 12, 4), False),
        (((0, 1), (2,)), (12, 4, 16), True),
        (((0, 1), (2, 3)), (12, 4, 6, 10), True),
    ],
)
def test_simulator_and_runtime_name_every_pass_alike(ranks, samples, sliced, schedule):
    """Rank by rank, in order; a rank whose neighbours cut its share elsewhere runs a pass in slices, one after another."""
    workload = resnet.workload(size="tiny", dtype="float64", global_batch=16)
    graph = costs(workload)
    first = [op.name for op in graph.ops].index("3") + 1
    pipeline = PipelinePlan(first_ops=(0, first), stage_ranks=ranks, micro_batches=2, schedule=schedule)
    if schedule == "searched":
        pipeline = replace(pipeline, order=SEARCHED)
    plan = Plan(batch=BatchPlan(samples=samples), pipeline=pipeline)
    devices = (Device(name="d", flops_per_s=1e9),) * len(samples)
    cluster = Cluster(name="one host", hosts=(Host(name="host", devices=devices),))
    predicted = make_simulator(graph, cluster, 16).stage_table(plan)
    ran = plan_job(workload, plan, graph).table
    for expected, found in zip(predicted.order, ran.order, strict=True):
        passes = [(str(parse_pass(slot.block).whole_share), slot.microbatch) for slot in found]
        assert [one for one, _ in groupby(passes)] == [(slot.block, slot.microbatch) for slot in expected]
    names = {block.name for block in ran.graph.blocks}
    assert names.issuperset(block.name for block in predicted.graph.blocks)
    assert (len(names) > len(predicted.graph.blocks)) == sliced


class Weighted(SupervisedWorkload):
    """Batches of three tensors, the third of which weighs the samples' losses."""

    def loss(self, model, batch):
        inputs, targets, weights = batch
        losses = functional.cross_entropy(model(inputs), targets, reduction="none")
        return (losses * weights).mean()


def test_the_loss_gets_all_tensors_of_a_batch():
    plain = resnet.workload(size="tiny", dtype="float64", global_batch=16)
    given = {field.name: getattr(plain, field.name) for field in fields(plain)}

    def weighted():
        inputs, targets = plain.build_dataset().tensors
        return TensorDataset(inputs, targets, torch.arange(len(targets), dtype=torch.float64))

    workload = Weighted(**given | {"build_dataset": weighted})
    graph = costs(workload)
    first = [op.name for op in graph.ops].index("3") + 1
    pipeline = PipelinePlan(first_ops=(0, first), stage_ranks=((0,), (1,)), micro_batches=2)
    job = plan_job(workload, Plan(batch=BatchPlan(samples=(16, 16)), pipeline=pipeline), graph)
    model, batch, cut = seeded(workload), batch_of(workload, 16), BatchCut(samples=job.samples)
    expected, total = reference(model, workload.loss, batch, cut)
    placed = Placed(graph=job.table.graph, assemble=job.assemble)
    ran = run(Case(placed=placed, model=model, table=job.table, batch=batch, cut=cut))
    assert relative_error(ran.gradients(), expected) < TOLERANCE[workload.dtype]
    assert ran.loss == pytest.approx(total)


def test_plans_that_cannot_run_are_refused():
    workload = gpt.workload(size="tiny", global_batch=16)
    with pytest.raises(SpecError, match="no pipeline stages"):
        plan_job(workload, default_plan((16,)), costs(workload))
    synced = resnet.workload(size="tiny", norm="sync", global_batch=16)
    stages = PipelinePlan(first_ops=(0,), stage_ranks=((0,),), micro_batches=2)
    with pytest.raises(SpecError, match="over micro-batches"):
        plan_job(synced, Plan(batch=BatchPlan(samples=(16,)), pipeline=stages), costs(synced))
    pipeline = PipelinePlan(first_ops=(0,), stage_ranks=((0, 1),), micro_batches=2, tensor_parallel=2)
    with pytest.raises(SpecError, match="tensor_parallel is 2"):
        plan_job(workload, Plan(batch=BatchPlan(samples=(16, 16)), pipeline=pipeline), costs(workload))
