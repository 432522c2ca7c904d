"""Run by mpirun: pipelined gradients against the unsplit model's, by our executor on every placement and by torch's runtime on a chain.

Prints one JSON line per case from rank 0: {"case", "error", "loss"}; with `fails`, one rank raises in the middle of a step.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.placed.batch_cut import even_cut
from autotune.runtime.placed.executor import Executor
from autotune.runtime.transport.groups import Groups
from autotune.schedule.answer import torch_csv
from autotune.schedule.classic import classic_orders, find_chain
from autotune.schedule.search import search
from autotune.schedule.timing import timetable
from autotune.workloads.blocks import split_backward
from autotune.workloads.cluster import load_cluster
from autotune.workloads.models import gpt, resnet
from tests.autotune.runtime.placed.branches import Parting, k_placed, parting_batch
from tests.autotune.runtime.placed.placements import (
    m_vocabulary,
    nn_vocabulary,
    untied,
    v_placed,
    with_auxiliary_loss,
    x_placed,
)
from tests.autotune.runtime.placed.reference import batch_of, reference, seeded
from tests.autotune.runtime.placed.torch_chain import TorchChain

NUM = 4


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    groups = Groups(control, load_cluster("this-machine").for_ranks(control.size))
    if sys.argv[1:] == ["fails"]:
        fail(control, groups)
        return
    for dtype in ("float32", "float64"):
        text, images = gpt.workload(size="tiny", dtype=dtype), resnet.workload(size="tiny", dtype=dtype)
        for name, workload, place, loss in (
            ("V gpt", text, v_placed, text.loss),
            ("V resnet", images, v_placed, images.loss),
            ("X gpt", text, x_placed, text.loss),
            ("X resnet", images, x_placed, images.loss),
            ("M gpt", untied(text), m_vocabulary, text.loss),
            ("NN gpt", untied(text), nn_vocabulary, with_auxiliary_loss),
        ):
            placed, model = place(workload, control.size), seeded(workload)
            check(control, groups, f"{name} {dtype}", placed, model, batch_of(workload, 16), loss)
    torch.manual_seed(3)
    check(
        control,
        groups,
        "K float64",
        k_placed(control.size),
        Parting().double(),
        parting_batch(16),
        lambda m, b: m.loss(b),
    )
    by_torch(control, gpt.workload(size="tiny", dtype="float64"))
    control.share(None)


def check(control: Control, groups: Groups, name: str, placed, model: nn.Module, batch, loss) -> None:  # noqa: PLR0913, PLR0917 - a case
    table = control.broadcast(None) if not control.is_leader else control.broadcast(order_of(placed.graph))
    assembly = placed.assemble(model)
    cut = even_cut(16, NUM, placed.num_lanes)
    expected, _ = reference(model, loss, batch, cut)
    program = assembly.program(placed.graph)
    modules = assembly.modules(program, control.rank)
    with groups.open("gloo", timeout_s=30) as group:
        executor = Executor(program, rebuilt(placed.graph, table), modules, group, timeout_s=30)
        for _ in range(2):
            step = executor.step(batch, cut)
        executor.close()
        del group, executor
    report(control, name, program, modules, expected, step.loss_share)


def order_of(graph) -> list:
    """Found once: two searches under a time limit may find two orders."""
    answer = search(graph, NUM, time_s=0.5)
    return [[(graph.index[slot.block], slot.microbatch) for slot in slots] for slots in answer.table.order]


def rebuilt(graph, order):
    return timetable(graph, NUM, [[tuple(step) for step in one] for one in order])


def report(control: Control, name: str, program, modules, expected, loss: float) -> None:  # noqa: PLR0913, PLR0917 - a case
    """The error over what each rank holds, the largest of all ranks."""
    apart = size = 0.0
    for part in program.parts:
        if part.name not in modules:
            continue
        for full, parameter in zip(
            program.parameters(part, control.rank), modules[part.name].parameters(), strict=True
        ):
            whole, _, place = full.partition("[")
            wanted = expected[whole]
            if place:
                shard, of = map(int, place.rstrip("]").split("/"))
                wanted = wanted[len(wanted) * shard // of : len(wanted) * (shard + 1) // of]
            apart += float((parameter.grad - wanted).double().square().sum())
            size += float(wanted.double().square().sum())
    gathered = control.gather([(apart / size) ** 0.5 if size else 0.0, loss])
    if gathered is not None:
        line = {"case": name, "error": max(one[0] for one in gathered), "loss": sum(one[1] for one in gathered)}
        sys.stdout.write(json.dumps(line) + "\n")


def by_torch(control: Control, workload) -> None:
    """1F1B and zero-bubble orders through torch.distributed.pipelining."""
    placed = v_placed(workload, control.size)
    blocks = [replace(block, split=(1.5, 1.5)) if block.memory < 0 else block for block in placed.graph.blocks]
    graph = replace(placed.graph, blocks=tuple(blocks))
    store = dist.TCPStore(
        "127.0.0.1",
        control.broadcast(free_port() if control.is_leader else None),
        control.size,
        control.is_leader,
        timeout=timedelta(seconds=30),
    )
    dist.init_process_group(
        "gloo", store=store, rank=control.rank, world_size=control.size, timeout=timedelta(seconds=30)
    )
    orders = dict(classic_orders(graph, find_chain(graph), NUM))
    parts = split_backward(graph)
    from autotune.schedule.classic import zero_bubble_order

    tables = {
        "1f1b": timetable(graph, NUM, orders["1f1b"]),
        "zero-bubble": timetable(parts, NUM, zero_bubble_order(graph, find_chain(graph), parts, NUM, depth=1)),
    }
    for name, table in tables.items():
        model, batch, cut = seeded(workload), batch_of(workload, 16), even_cut(16, NUM)
        expected, _ = reference(model, workload.loss, batch, cut)
        assembly = placed.assemble(model)
        program = assembly.program(placed.graph)
        modules = assembly.modules(program, control.rank)
        chain = TorchChain(workload, program, modules, torch_csv(graph, table), num_microbatches=NUM, timeout_s=30)
        loss = [chain.step(batch) for _ in range(2)][-1]
        chain.close()
        report(control, f"torch {name} float64", program, modules, expected, loss)
    control.share(None)
    dist.destroy_process_group()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Broken(nn.Module):
    def forward(self, *_inputs):
        raise ValueError("out of luck")


def fail(control: Control, groups: Groups) -> None:
    """Rank 1 raises; the others must fail within the time limit, and all ranks report."""
    workload = gpt.workload(size="tiny")
    placed, model = v_placed(workload, control.size), seeded(workload)
    graph = placed.graph
    table = timetable(graph, NUM, dict(classic_orders(graph, find_chain(graph), NUM))["1f1b"])
    assembly = placed.assemble(model)
    program = assembly.program(graph)
    modules = assembly.modules(program, control.rank)
    outcome = "finished"
    try:
        with groups.open("gloo", timeout_s=20) as group:
            executor = Executor(program, table, modules, group, timeout_s=20)
            del group
            if control.rank == 1:
                executor.modules["s1"].register_forward_pre_hook(lambda *_: Broken()())
            executor.step(batch_of(workload, 16), even_cut(16, NUM))
    except Exception as error:  # noqa: BLE001 - the test checks it
        outcome = type(error).__name__
    gathered = control.gather(outcome)
    if gathered is not None:
        sys.stdout.write(json.dumps({"outcomes": gathered}) + "\n")
    control.share(None)


main()
