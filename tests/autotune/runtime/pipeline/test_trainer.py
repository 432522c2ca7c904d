"""Pipelined training is plain training; memory is metered, time passes as stated, and blocks are seen on the timeline."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from autotune.runtime.data import batches_of
from autotune.runtime.pipeline.batch_cut import even_cut
from autotune.runtime.pipeline.block_costs import priced
from autotune.runtime.pipeline.stages import (
    Assembly,
    add_chain,
    chain_blocks,
    even_stages,
    first_modules,
    module_ops,
    parameter_names,
    stage_modules,
)
from autotune.runtime.pipeline.trainer import PipelineJob, PipelineTrainer
from autotune.runtime.trainer import Seat
from autotune.schedule.answer import as_timeline
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.shapes import v_shape
from autotune.schedule.timing import timetable
from tests.autotune.runtime.pipeline.placements import v_placed, x_placed
from tests.autotune.runtime.pipeline.reference import seeded
from tests.gloo_ranks import on_ranks
from workloads.capture import capture
from workloads.cluster import Device
from workloads.errors import InfeasiblePlanError, SpecError
from workloads.models import gpt, resnet

SEED = 5
ONE_AT_A_TIME = threading.Lock()
"""Ranks are threads here, and the seed is the process's."""


def classic(graph, name, num_microbatches):
    return timetable(graph, num_microbatches, dict(classic_orders(graph, find_chain(graph), num_microbatches))[name])


def train(job, num_steps, device=None, *, metered=False):
    def run(group):
        seat = Seat(
            rank=group.rank(), device=device or Device(name="real"), torch_device=torch.device("cpu"), timeout_s=20
        )
        with ONE_AT_A_TIME:
            trainer = PipelineTrainer(job, group, seat, seed=SEED)
        steps = [trainer.metered_step() if metered else trainer.step() for _ in range(num_steps)]
        held = {
            name: parameter.detach()
            for part in trainer.executor.program.parts
            if part.name in trainer.executor.modules
            for name, parameter in zip(part.parameters, trainer.executor.modules[part.name].parameters(), strict=True)
        }
        trainer.close()
        return held, steps, trainer.peak_memory_bytes

    outcomes = on_ranks(job.table.graph.num_devices, run)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


@pytest.mark.parametrize("place", [v_placed, x_placed])
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_training_goes_the_way_of_the_unsplit_model(name, place):
    factory = {"gpt": gpt, "resnet": resnet}[name]
    workload = factory.workload(size="tiny", dtype="float64", global_batch=12)
    placed = place(workload, 2)
    table = classic(placed.graph, "1f1b", 3) if place is v_placed else searched(placed.graph)
    outcomes = train(PipelineJob(workload=workload, assemble=placed.assemble, table=table), 4)
    model = seeded(workload, SEED)
    optimizer, batches = workload.optimizer(model), batches_of(workload, (12,), 0, seed=SEED)
    cut = even_cut(12, 3, placed.num_lanes)
    for step in range(4):
        batch, _, _ = batches.take(step)
        optimizer.zero_grad()
        loss = 0.0
        for microbatch in range(3):
            for lane in range(placed.num_lanes):
                rows = cut.rows(lane, microbatch)
                part = workload.loss(model, tuple(one[rows] for one in batch)) * cut.weight(lane, microbatch)
                part.backward()
                loss += float(part.detach())
        optimizer.step()
        assert sum(steps[step].loss_share for _, steps, _ in outcomes) == pytest.approx(loss, rel=1e-9)
    for held, _, _ in outcomes:
        for key, value in held.items():
            assert torch.allclose(value, model.get_parameter(key), rtol=1e-7, atol=1e-9), key


def searched(graph):
    from autotune.schedule.search import search

    return search(graph, 3, time_s=0.3).table


def test_a_rank_holds_only_what_it_runs():
    workload = gpt.workload(size="tiny")
    placed = v_placed(workload, 4)
    table = classic(placed.graph, "1f1b", 4)
    outcomes = train(PipelineJob(workload=workload, assemble=placed.assemble, table=table), 1)
    whole = sum(p.numel() for p in workload.model().parameters())
    held = [sum(p.numel() for p in one.values()) for one, _, _ in outcomes]
    tied = workload.model()[0].token.weight.numel()
    assert sum(held) == whole + tied
    assert max(held) < whole


def test_memory_is_metered_and_depends_on_the_order():
    workload = resnet.workload(size="tiny", global_batch=16)
    placed = v_placed(workload, 2)
    peaks = {}
    for name in ("gpipe", "1f1b"):
        graph = v_shape(2)
        roomy = type(graph)(num_devices=2, memory=(99.0, 99.0), blocks=graph.blocks)
        job = PipelineJob(workload=workload, assemble=placed.assemble, table=classic(roomy, name, 8))
        peaks[name] = [peak for _, _, peak in train(job, 2, metered=True)]
    assert peaks["1f1b"][0] < peaks["gpipe"][0]
    job = PipelineJob(workload=workload, assemble=placed.assemble, table=classic(placed.graph, "1f1b", 8))
    with pytest.raises(InfeasiblePlanError):
        train(job, 1, Device(name="small", memory_bytes=1000.0), metered=True)


def priced_job(workload, num, device, num_microbatches):
    """A chain with its costs, and the cheapest of the classic orders for them."""
    model = seeded(workload)
    tensors = workload.dataset().tensors
    costs = capture(model, lambda n: workload.loss(model, tuple(one[:n] for one in tensors)))

    def assemble(built):
        assembly, modules = Assembly(), stage_modules(workload, built)
        ops, first = module_ops(costs, built, modules), even_stages(len(modules), num)
        names = parameter_names(built)
        add_chain(assembly, workload, modules, first, chain_blocks(num), names=names, ops=ops)
        return assembly

    assembly = assemble(model)
    samples = workload.global_batch / num_microbatches
    graph = priced(assembly.program(v_shape(num)), assembly.ops, [device] * num, samples)
    return PipelineJob(workload=workload, assemble=assemble, table=classic(graph, "1f1b", num_microbatches)), costs


def test_emulated_devices_take_as_long_as_predicted_and_blocks_are_on_the_timeline():
    device = Device(name="slow", flops_per_s=2e8, memory_bytes_per_s=2e8)
    job, costs = priced_job(resnet.workload(size="tiny", global_batch=16), 2, device, 4)
    outcomes = train(job, 2, device)
    predicted = as_timeline(job.table)
    for rank, (_, steps, _) in enumerate(outcomes):
        measured = steps[-1].timeline()
        mine = [span for span in measured.spans if span.lane == "compute"]
        expected = [span for span in predicted.spans if span.rank == rank]
        assert [(span.op, span.kind) for span in mine] == [(span.op, span.kind) for span in expected]
        busy_s = sum(span.duration_s for span in expected)
        assert sum(span.duration_s for span in mine) >= busy_s * 0.99  # never faster than the device
        assert steps[-1].end_s - steps[-1].begin_s >= job.table.makespan_s * 0.99
    total = sum(block.seconds for block in job.table.graph.blocks)
    whole = sum(op.flops_per_sample * (1 + op.backward_factor) for op in costs.ops) * 4 / 2e8
    assert total >= whole * 0.99


def test_cuts_in_ops_become_cuts_in_modules():
    workload = gpt.workload(size="tiny")
    model = seeded(workload)
    tensors = workload.dataset().tensors
    graph = capture(model, lambda n: workload.loss(model, tuple(one[:n] for one in tensors)))
    modules = stage_modules(workload, model)
    names = [op.name for op in graph.ops]
    begin = names.index("1") + 1
    assert first_modules(graph, model, modules, (0, begin)) == (0, 2)
    with pytest.raises(SpecError, match=r"inside a module: cut at one of"):
        first_modules(graph, model, modules, (0, begin - 2))


def test_models_that_cannot_be_cut_say_what_to_do():
    workload = gpt.workload(size="tiny")

    class Own:
        name = "own"
        stages = staticmethod(partial(list))

    assert stage_modules(Own(), workload.model())
    with pytest.raises(SpecError, match=r"stages\(model\)"):
        stage_modules(workload, torch.nn.Linear(2, 2))
