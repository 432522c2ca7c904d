"""Validation refuses what cannot run; if a rank fails, the others fail too, and none waits for ever."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed import BarrierOptions

from autotune.runtime.errors import PeerLostError
from autotune.runtime.placed.batch_cut import BatchCut, even_cut
from autotune.runtime.placed.executor import Executor
from autotune.runtime.placed.parts import Part, Program, Source
from autotune.runtime.placed.routes import make_routes
from autotune.runtime.placed.shared_gradients import SharedGradients
from autotune.workloads.errors import SpecError
from autotune.workloads.models import gpt
from tests.autotune.runtime.placed.placements import m_vocabulary, random_table
from tests.autotune.schedule.shapes import m_shape, v_shape
from tests.gloo_ranks import on_ranks


class Fails(nn.Module):
    """Goes wrong at its third micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 3:
            raise ValueError("out of luck")
        return self.layer(inputs)


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(inputs).square().mean()


def parts(num=3):
    return tuple(
        Part(
            name=f"s{stage}",
            forward=f"f{stage}",
            backward=f"b{stage}",
            inputs=(Source(part=f"s{stage - 1}"),) if stage else (),
            data=() if stage else (0,),
            loss_weight=float(stage == num - 1),
            parameters=(f"{stage}.weight", f"{stage}.bias"),
        )
        for stage in range(num)
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_rank_does_not_leave_the_others_waiting(failing):
    program = Program(parts=parts(), graph=v_shape(3))
    table = random_table(program.graph, 4, 0)

    def run(group):
        rank = group.rank()
        module = Mean() if rank == 2 else Fails() if rank == failing else nn.Linear(4, 4)
        executor = Executor(program, table, {f"s{rank}": module}, group, timeout_s=5)
        del group
        try:
            executor.step((torch.ones(8, 4),), even_cut(8, 4))
        except (ValueError, PeerLostError) as error:
            return type(error), str(error)
        return None

    outcomes = on_ranks(3, run, timeout_s=30)
    assert outcomes[failing] == (ValueError, "out of luck")
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != failing]
    assert all(outcome is not None and outcome[0] is PeerLostError for outcome in others), outcomes
    assert any("micro-batch" in outcome[1] for outcome in others)


def test_messages_to_a_rank_that_is_gone_say_so():
    """Where gloo knows that a peer is gone, it raises when a message is posted, not when it is waited for."""
    program = Program(parts=parts(2), graph=v_shape(2))
    table = random_table(program.graph, 4, 0)

    def run(group):
        rank = group.rank()
        executor = Executor(program, table, {f"s{rank}": nn.Linear(4, 4)}, group, timeout_s=5)
        group.barrier(BarrierOptions()).wait()
        del group
        if rank == 0:
            time.sleep(0.5)  # rank 1 has left
            executor.step((torch.ones(8, 4),), even_cut(8, 4))

    found, _ = on_ranks(2, run)
    assert isinstance(found, PeerLostError), found
    assert str(found).startswith("rank 1 is gone: ")


def test_what_reads_more_than_the_blocks_wait_for_is_refused():
    graph = v_shape(3)
    blocks = tuple(replace(block, after=()) if block.name == "f2" else block for block in graph.blocks)
    late = replace(graph, blocks=blocks)
    program = Program(parts=parts(), graph=late)
    table = random_table(late, 1, 0)
    order = [list(slots) for slots in table.order]
    order[1] = [slot for slot in order[1] if slot.block == "b1"] + [slot for slot in order[1] if slot.block == "f1"]
    with pytest.raises(SpecError, match=r"rank 1 at 'b1' of micro-batch 0.*'after'"):
        make_routes(program, replace(table, order=tuple(map(tuple, order))))


def test_programs_that_mean_nothing_are_refused():
    good = parts(2)
    for wrong, message in (
        ((good[0],), "no part runs in block 'f1'"),
        ((good[1], good[0]), "list it before"),
        ((good[0], replace(good[1], backward="b0")), "different devices"),
        ((good[0], replace(good[1], forward="f7")), "'f7'"),
        ((good[0], replace(good[1], inputs=(Source(part="s0", output=1),))), "reads output 1"),
        ((replace(good[0], backward=""), good[1]), "has none"),
        ((good[0], replace(good[1], lane=1)), "within a lane"),
    ):
        with pytest.raises(SpecError, match=message):
            Program(parts=wrong, graph=v_shape(2))


def test_a_table_held_whole_and_by_rows_is_refused():
    workload = gpt.workload(size="tiny")
    program = m_vocabulary(workload, 2).assemble(workload.model()).program(m_shape(2))
    with pytest.raises(SpecError, match=r"0.token.weight.*untie"):
        SharedGradients(program, {}, 0)


def test_cuts_that_do_not_fit_are_refused():
    for cut, message in (
        (BatchCut(samples=((2, 2),)), "has 3 of each of 1 lanes|3 of each"),
        (BatchCut(samples=((2, 0, 2),)), "one at least"),
        (BatchCut(samples=((2, 2, 2),)), "6 samples together but the batch has 4"),
    ):
        with pytest.raises(SpecError, match=message):
            cut.check(1, 3, 4)
    with pytest.raises(SpecError, match="use fewer"):
        even_cut(3, 2, 2)
