"""Pipelined training is plain training; memory is metered, time passes as stated, and blocks are seen on the timeline."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

from autotune.runtime.data.batches import batches_of
from autotune.runtime.placed.batch_cut import BatchCut, even_cut, for_samples
from autotune.runtime.placed.stages import (
    Assembly,
    Chain,
    add_chain,
    chain_blocks,
    even_stages,
    first_modules,
    module_ops,
    parameter_names,
    stage_modules,
)
from autotune.runtime.placed.trainer import PipelineJob, PipelineTrainer
from autotune.runtime.train.trainer import RankContext
from autotune.schedule.answer import as_timeline
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.timing import timetable
from autotune.workloads.capture import capture
from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.models import gpt, resnet
from tests.autotune.runtime.placed.block_costs import priced
from tests.autotune.runtime.placed.placements import v_placed, x_placed
from tests.autotune.runtime.placed.reference import seeded
from tests.autotune.schedule.shapes import v_shape
from tests.gloo_ranks import on_ranks

SEED = 5
ONE_AT_A_TIME = threading.Lock()
"""Ranks are threads here, and the seed is the process's."""


def classic(graph, name, num_microbatches):
    return timetable(graph, num_microbatches, dict(classic_orders(graph, find_chain(graph), num_microbatches))[name])


def train(job, num_steps, device=None, *, metered=False):
    def run(group):
        rank_context = RankContext(
            rank=group.rank(), device=device or Device(name="real"), torch_device=torch.device("cpu"), timeout_s=20
        )
        with ONE_AT_A_TIME:
            trainer = PipelineTrainer(job, group, rank_context, seed=SEED)
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


def test_a_batch_that_ends_an_epoch_is_cut_in_proportion():
    cut = BatchCut(samples=((4, 4), (2, 2)))
    smaller, rows = for_samples(cut, 5)
    assert smaller.samples == ((2, 1), (1, 1))
    assert rows == [0, 1, 2, 3, 4]
    assert sum(map(sum, smaller.weights)) == pytest.approx(1)
    least, rows = for_samples(cut, 2)
    assert least.total == len(rows) == 4  # of which two count for nothing
    assert sorted(weight for one in least.weights for weight in one) == [0, 0, 0.5, 0.5]
    for lane, microbatch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert len(rows[least.rows(lane, microbatch)]) == 1
    assert for_samples(cut, 12) == (cut, list(range(12)))


@pytest.mark.parametrize("left", [7, 2])
def test_epochs_that_do_not_divide_train_as_the_unsplit_model_does(left):
    whole = resnet.workload(size="tiny", dtype="float64", global_batch=12)
    workload = replace(
        whole, build_dataset=lambda: TensorDataset(*(t[: 24 + left] for t in whole.build_dataset().tensors))
    )
    placed = v_placed(workload, 2)
    table = classic(placed.graph, "1f1b", 3)
    outcomes = train(PipelineJob(workload=workload, assemble=placed.assemble, table=table), 4)
    model = seeded(workload, SEED)
    optimizer, batches = workload.optimizer(model), batches_of(workload, (12,), 0, seed=SEED)
    for step in range(4):
        batch, _, _ = batches.take(step)
        assert len(batch[0]) == (left if step == 2 else 12)
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        optimizer.step()
        assert sum(steps[step].loss_share for _, steps, _ in outcomes) == pytest.approx(float(loss.detach()), rel=1e-9)


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
        add_chain(
            assembly, workload, Chain(modules=modules, first=first, blocks=chain_blocks(num), names=names, ops=ops)
        )
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
        measured = steps[-1].timeline(rank)
        mine = [span for span in measured.spans if span.track == "compute" and span.kind != "optimizer"]
        expected = [span for span in predicted.spans if span.rank == rank]
        assert [(span.op, span.kind) for span in mine] == [(span.op, span.kind) for span in expected]
        busy_s = sum(span.duration_s for span in expected)
        caught_up_s = len(mine) * steps[-1].late_s
        # No faster than the device, but for what it makes up for: real work that was late, and sleeps that were too long.
        assert sum(span.duration_s for span in mine) + caught_up_s >= busy_s * 0.9
        assert steps[-1].total_s >= job.table.makespan_s * 0.99
        assert steps[-1].compute_s + steps[-1].wait_s == pytest.approx(steps[-1].total_s)
        covered = sum(span.duration_s for span in measured.spans)
        # Passes, waits, data, optimizer: hardly anything else.
        assert covered == pytest.approx(steps[-1].total_s, rel=0.1)
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
